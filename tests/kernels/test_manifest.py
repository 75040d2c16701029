"""Names are stable, the manifest survives the disk, a cache of something else is refused."""

import json
from fractions import Fraction

import msgspec
import pytest

from support.released import released_config
from support.tiny_checkpoint import tiny_config
from trnrt_kernels.errors import ManifestMismatch
from trnrt_kernels.manifest import (
    FORMAT_VERSION,
    HEADER_FIELDS,
    Artefact,
    ArtefactKey,
    Bucket,
    CachedFile,
    CacheManifest,
    GraphEntry,
    GraphKey,
    ManifestHeader,
    canonical_json,
    read_manifest,
    write_manifest,
)
from trnrt_kernels.memory_plan import BUNDLE_SHARE, plan_memory
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.required_graphs import kernels_hash, required_graphs
from trnrt_kernels.serving import ServingShape

HEADER = ManifestHeader(
    compiler_version="2.13.0",
    tp=32,
    cp=8,
    lnc=2,
    model_revision="eb9eb208",
    kernels_hash="00ff",
)
KEY = GraphKey(
    family="glm5_next",
    segment="kda",
    dims={"hidden_size": 64, "rms_norm_eps": 1e-5, "norm_topk_prob": True},
    bucket=Bucket(phase="decode", rows=4, context=8192),
    target="cpu",
    numeric_mode="fast",
    dtype="bfloat16",
    cache_dtypes={"kda_state": "float32"},
    weight_form="tensor",
    tp=32,
    cp=8,
    lnc=2,
    decisions={"scale_layout": "rows"},
    sources="abcd",
)
ARTEFACT = Artefact(
    key=ArtefactKey(
        graph_hash="1234",
        compiler="inductor",
        compiler_version="2.13.0",
        flags=("-O3",),
        isa="avx2",
    ),
    files=(CachedFile(path="kda.pt2", num_bytes=10, sha256="ff"),),
)
MANIFEST = CacheManifest.make(HEADER, [GraphEntry(key=KEY, graph_hash="1234")], [ARTEFACT])


def released_graphs(**changes):
    config = Glm5NextConfig.from_dict(released_config())
    return graphs(config, **changes)


def tiny_graphs(text_changes=None, **changes):
    return graphs(Glm5NextConfig.from_dict(tiny_config(**(text_changes or {}))), **changes)


def graphs(config, *, row_tile=1, bundle_share=BUNDLE_SHARE, **changes):
    settings = {"backend": "cpu", "dtype": "bfloat16"} | changes
    shape = ServingShape.resolve(
        window=config.max_position_embeddings, index_kpool=config.index_kpool, **settings
    )
    memory = plan_memory(config, shape, bundle_share=bundle_share)
    return list(required_graphs(config, shape, memory, row_tile=row_tile))


def test_manifest_round_trips_through_the_disk(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path, expected=HEADER) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_each_name_leads_to_the_next():
    assert MANIFEST.find(KEY) == ARTEFACT
    other = msgspec.structs.replace(KEY, segment="dsa")
    assert MANIFEST.find(other) is None
    assert MANIFEST.missing([KEY, other]) == [other]


@pytest.mark.parametrize("field", [name for name in HEADER_FIELDS if name != "format_version"])
def test_a_header_field_that_differs_is_named_with_both_values(tmp_path, field):
    value = getattr(HEADER, field)
    changed = value + 1 if isinstance(value, int) else value + "x"
    write_manifest(tmp_path, msgspec.structs.replace(MANIFEST, **{field: changed}))
    with pytest.raises(ManifestMismatch) as error:
        read_manifest(tmp_path, expected=HEADER)
    assert f"{field} expected {value!r}, found {changed!r}" in str(error.value)


def test_another_format_is_named_before_its_fields_are_read(tmp_path):
    raw = json.loads(canonical_json(MANIFEST)) | {"format_version": 99, "new_field": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(
        ManifestMismatch, match=f"format_version expected {FORMAT_VERSION}, found 99"
    ):
        read_manifest(tmp_path)


def edit(change):
    def write(path):
        raw = json.loads(path.read_text())
        change(raw)
        path.write_text(json.dumps(raw))

    return write


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: path.unlink(), "cannot read"),
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "is damaged"),
        (edit(lambda raw: raw.pop("tp")), "is damaged.*tp"),
        (edit(lambda raw: raw.update(extra=1)), "is damaged.*extra"),
        (edit(lambda raw: raw["graphs"][KEY.digest]["key"].update(tp=1)), "is damaged: graph"),
    ],
    ids=["gone", "not-json", "cut", "field-gone", "field-new", "key-edited"],
)
def test_damaged_manifest_is_refused(tmp_path, damage, named):
    write_manifest(tmp_path, MANIFEST)
    damage(tmp_path / "manifest.json")
    with pytest.raises(ManifestMismatch, match=named):
        read_manifest(tmp_path)


def test_canonical_form_does_not_depend_on_the_order_of_dicts():
    mirrored = msgspec.structs.replace(KEY, dims=dict(reversed(KEY.dims.items())))
    assert mirrored.digest == KEY.digest


@pytest.mark.parametrize("field", GraphKey.__struct_fields__)
def test_every_field_of_a_key_changes_its_name(field):
    value = getattr(KEY, field)
    if isinstance(value, dict):
        changed = value | {"new": next(iter(value.values()))}
    elif isinstance(value, Bucket):
        changed = msgspec.structs.replace(value, rows=5)
    else:
        changed = value * 2
    assert msgspec.structs.replace(KEY, **{field: changed}).digest != KEY.digest


def test_required_graphs_are_distinct_and_cover_every_bucket():
    keys = released_graphs()
    assert len({key.digest for key in keys}) == len(keys)
    names = {key.segment for key in keys}
    assert names == {
        *("embed", "kda", "kda+4exports", "dsa", "dense", "moe", "head+greedy", "head+sample")
    }
    assert {k.bucket.phase for k in keys if k.segment == "kda+4exports"} == {"prefill"}
    dsa_decode = [k.bucket for k in keys if k.segment == "dsa" and k.bucket.phase == "decode"]
    assert {(b.rows, b.context) for b in dsa_decode} == {
        (rows, context)
        for rows in (1, 2, 4, 8, 12)
        for context in (2**bits for bits in range(13, 21))
    }
    kda_decode = [k.bucket for k in keys if k.segment == "kda" and k.bucket.phase == "decode"]
    assert {(b.rows, b.context) for b in kda_decode} == {(rows, 0) for rows in (1, 2, 4, 8, 12)}


def test_required_graphs_name_what_is_cached_and_how():
    by_segment = {key.segment: key for key in tiny_graphs(dtype="float32")}
    assert by_segment["kda"].cache_dtypes == {"conv_tail": "float32", "kda_state": "float32"}
    assert by_segment["dense"].cache_dtypes == {}
    bf16 = {key.segment: key for key in tiny_graphs()}
    assert bf16["kda"].cache_dtypes["kda_state"] == "float32"
    assert bf16["dsa"].cache_dtypes["latents"] == "bfloat16"


@pytest.mark.parametrize(
    "change",
    [{"row_tile": 4}, {"dtype": "float32"}, {"numeric_mode": "strict"}, {"max_num_seqs": 5}],
    ids=str,
)
def test_settings_that_shape_a_graph_change_every_key_of_it(change):
    before = {key.digest for key in tiny_graphs()}
    after = {key.digest for key in tiny_graphs(**change)}
    assert before.isdisjoint(after)


def test_number_of_layers_and_window_of_the_model_do_not_change_a_kda_graph():
    def kda(keys):
        return {key.digest for key in keys if key.segment == "kda"}

    longer = {
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "deepseek_sparse_attention"] * 3,
        "mlp_layer_types": ["dense"] + ["sparse"] * 5,
    }
    # How many states fit beside the pages depends on the layers, and is a size of the graph.
    same = {"bundle_share": Fraction(0)}
    assert kda(tiny_graphs(**same)) == kda(tiny_graphs(longer, **same))
    assert kda(tiny_graphs()) != kda(tiny_graphs(**same))


def test_kernels_hash_is_a_digest_of_sources():
    assert len(kernels_hash()) == 64
