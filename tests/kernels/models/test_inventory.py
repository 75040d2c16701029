"""The inventory is the released checkpoint, to the byte."""

import collections
import math

from support.released import released_config
from trnrt_kernels.common.fp8 import scale_shape
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import Component, Precision, inventory

BYTES = {Precision.WIDE: 2, Precision.STRICT_BF16: 2, Precision.STRICT_F32: 4}

RELEASED_BYTES = {
    Component.EMBED: 1_268_776_960,
    Component.HEAD: 1_268_776_960,
    Component.NORMS: 745_472,
    Component.MHC: 70_788_600,
    Component.KDA: 9_366_356_992,
    Component.MLA: 1_107_566_592 + 369_143_808,
    Component.INDEXER: 164_381_184,
    Component.DENSE_FFN: 453_095_424,
    Component.ROUTER: 99_138_816,
    Component.SHARED_EXPERTS: 1_057_222_656,
    Component.EXPERTS: 304_480_124_928,
}


def released():
    return Glm5NextConfig.from_dict(released_config())


def test_bytes_of_every_component_are_the_published_ones():
    found = collections.Counter()
    num_tensors = 0
    for tensor in inventory(released()):
        for part in tensor.parts:
            size = math.prod(part.shape)
            num_tensors += 1
            if tensor.precision is Precision.BLOCK_FP8:
                num_tensors += 1
                found[tensor.component] += size + 4 * math.prod(scale_shape(part.shape))
            else:
                found[tensor.component] += BYTES[tensor.precision] * size
    assert found == RELEASED_BYTES
    assert sum(found.values()) == 319_706_118_392
    assert num_tensors == 74_001


def test_parts_tile_the_held_tensor_without_gap():
    for tensor in inventory(released()):
        assert tensor.size == sum(math.prod(part.shape) for part in tensor.parts)
        stops = [part.stop for part in tensor.parts]
        assert [part.start for part in tensor.parts] == [0, *stops[:-1]]
        assert stops[-1] == tensor.shape[0]


def test_names_are_unique():
    tensors = list(inventory(released()))
    paths = [tensor.path for tensor in tensors]
    parts = [part.hf_name for tensor in tensors for part in tensor.parts]
    assert len(set(paths)) == len(paths)
    assert len(set(parts)) == len(parts)


def test_shared_indexer_layer_has_no_indexer_of_its_own():
    text = {
        "model_type": "glm5_next_text",
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "indexer_types": ["full", "shared"],
    }
    tensors = list(inventory(Glm5NextConfig.from_dict(text)))
    layers = [t.layer for t in tensors if t.component is Component.INDEXER]
    assert set(layers) == {0}
