"""Run a model on golden data and compare every quantity it has: `trnrt verify golden`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from trnrt_engine.golden import (
    OWN_PATHS,
    STREAMS,
    VALUES,
    Check,
    GoldenCase,
    compare,
    count_wrong,
    token_positions,
    unequal_rows,
)
from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.models.glm5_next.layers import SegmentKind
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.reference import indexer, mhc

UNEVEN_CHUNKS = (37, 64, 29, 1, 130)  # then the rest
_GRID = 64
_NUM_SCRATCH = 4
_ATTENTION = (SegmentKind.KDA, SegmentKind.DSA, SegmentKind.DSA_SHARED)


@dataclass
class Trace:
    """What a run over consecutive tokens left, one row per token.

    Fields:
        streams: after each layer; before_attention: before each layer; selected: pools per layer.
    """

    logits: Tensor
    streams: dict[int, Tensor] = field(default_factory=dict)
    before_attention: dict[int, Tensor] = field(default_factory=dict)
    selected: dict[int, Tensor] = field(default_factory=dict)


class Sequence:
    """One sequence on caches of its own, filled with NaN to show what is read unwritten."""

    def __init__(self, model: Model, max_tokens: int) -> None:
        config = model.config
        page_size = math.lcm(_GRID, config.index_kpool)
        num_pages = -(-max_tokens // page_size)
        geometry = CacheGeometry(
            num_pages=_NUM_SCRATCH + num_pages,
            page_size=page_size,
            num_state_slots=_NUM_SCRATCH + 1,
            num_scratch=_NUM_SCRATCH,
        )
        self.model = model
        self.caches = Caches.allocate(config, geometry, dtype=model.weights.dtype)
        for layer in self.caches.layers:
            for tensor in layer.values():
                tensor.fill_(math.nan)
        # Pages out of order: nothing may take a page id for a position.
        self.pages = _NUM_SCRATCH + torch.arange(num_pages).flip(0)
        self.slot = torch.tensor([_NUM_SCRATCH])
        self.num_tokens = 0

    def prefill(self, token_ids: Tensor) -> Trace:
        """Append a chunk of any length."""
        count = token_ids.shape[0]
        inputs = PrefillInputs(
            token_ids_T=torch.nn.functional.pad(token_ids, (0, -count % _GRID)),
            start=torch.tensor([self.num_tokens]),
            num_tokens=torch.tensor([count]),
            state_slot=self.slot,
            block_table_P=self.pages,
        )
        trace = Trace(torch.empty(0))
        kpool = self.model.config.index_kpool
        positions = self.num_tokens + torch.arange(count)
        streams = torch.empty(0)
        for result in self.model.segments(inputs, self.caches):
            layer = result.segment.layer
            if layer is not None and result.segment.kind in _ATTENTION:
                trace.before_attention[layer] = streams[:count]
                if result.segment.kind is SegmentKind.DSA and result.selected is not None:
                    pools = result.selected[:count]
                    trace.selected[layer] = token_positions(pools, positions, kpool)
            streams = result.streams
            if layer is not None:
                trace.streams[layer] = streams[:count]
        trace.logits = self.model.logits(streams, torch.arange(count))
        self.num_tokens += count
        return trace

    def decode(self, token_id: Tensor) -> Tensor:
        """Append one token and return its logits [V]."""
        inputs = DecodeInputs(
            token_ids_B=token_id.view(1),
            positions_B=torch.tensor([self.num_tokens]),
            state_slots_B=self.slot,
            block_table_BP=self.pages.unsqueeze(0),
            is_live_B=torch.tensor([True]),
        )
        self.num_tokens += 1
        return self.model.decode_logits(inputs, self.caches)[0]

    def cache(self, layer: int, name: str) -> Tensor:
        """A cache of this sequence: its slot's row, or its pages in order as one list."""
        tensor = self.caches.layers[layer][name]
        if name in ("latents", "pool_keys"):
            return tensor.index_select(0, self.pages).flatten(0, 1)
        return tensor[_NUM_SCRATCH]


def verify_golden(
    folder: Path, *, numeric_mode: NumericMode = NumericMode.STRICT
) -> Iterator[Check]:
    """Run a golden folder's model in float32 and yield one check per quantity.

    Raises:
        GoldenError: the folder holds no golden data.
        CheckpointError, UnsupportedConfig: the model cannot be loaded.
    """
    case = GoldenCase.load(folder)
    model = Model(case.config, case.weights, numeric_mode=numeric_mode)
    whole = Sequence(model, case.input_ids.shape[0])
    trace = whole.prefill(case.input_ids)
    yield compare("prefill logits", {"": (trace.logits, case.expected["prefill_logits"])}, VALUES)
    yield from _inner_checks(case, trace)
    yield from _cache_checks(case, whole, "")
    yield from _split_decode_checks(case, model, trace)
    yield from _uneven_checks(case, model, trace)
    yield from _greedy_checks(case, model)


def _inner_checks(case: GoldenCase, trace: Trace) -> Iterator[Check]:
    expected, at = case.expected, case.stream_positions
    streams = {
        f"layer {layer}": (trace.streams[layer][at], expected[f"layer_streams.{layer}"])
        for layer in case.layers_of("layer_streams")
    }
    yield compare("streams", streams, STREAMS)
    wrong = {
        f"layer {layer}": unequal_rows(trace.selected[layer], expected[f"topk_indices.{layer}"])
        for layer in case.layers_of("topk_indices")
    }
    yield count_wrong("selected positions", wrong)
    keys = {layer: _token_keys(case, trace, layer) for layer in case.layers_of("index_key")}
    for index, name in enumerate(("index_key", "index_gate")):
        pairs = {
            f"layer {layer}": (keys[layer][:, index], expected[f"{name}.{layer}"]) for layer in keys
        }
        yield compare(name.replace("_", " ") + "s", pairs, VALUES)


def _token_keys(case: GoldenCase, trace: Trace, layer: int) -> Tensor:
    """Index key and gate of every token: [T, 2, J]; caches hold them for open pools only."""
    weights, config = case.weights.layers[layer], case.config
    constants = mhc.Constants(config.rms_norm_eps, config.hc_eps, config.hc_sinkhorn_iters)
    half = mhc.HalfWeights(
        weights["attn_hc_fn"],
        weights["attn_hc_base"],
        weights["attn_hc_scale"],
        weights["attn_norm"],
    )
    x_TD = mhc.enter(trace.before_attention[layer], half, constants).hidden_TD
    names = (
        "index_q_proj",
        "index_k_proj",
        "index_k_norm",
        "index_k_norm_bias",
        "index_weights_proj",
        "index_gate_proj",
        "index_ape",
    )
    return indexer.token_keys(x_TD, indexer.IndexerWeights(*(weights[n] for n in names)))


def _cache_checks(case: GoldenCase, sequence: Sequence, suffix: str) -> Iterator[Check]:
    """Compare the caches after the whole prompt."""
    expected, num_taps = case.expected, case.config.linear_conv_kernel_dim - 1
    names = {
        "latent_kv": ("latents", "latents"),
        "pool_key": ("pool keys", "pool_keys"),
        "kda_state": ("KDA state", "kda_state"),
        "conv_state": ("conv tail", "conv_tail"),
    }
    for golden_name, (quantity, cache_name) in names.items():
        pairs = {}
        for layer in case.layers_of(golden_name):
            actual, wanted = sequence.cache(layer, cache_name), expected[f"{golden_name}.{layer}"]
            if golden_name == "conv_state":
                wanted = wanted[:, -num_taps:].t()
            pairs[f"layer {layer}"] = (actual[: wanted.shape[0]], wanted)
        yield compare(quantity + suffix, pairs, VALUES)


def _split_decode_checks(case: GoldenCase, model: Model, one_shot: Trace) -> Iterator[Check]:
    sequence = Sequence(model, case.input_ids.shape[0])
    sequence.prefill(case.input_ids[: case.split])
    logits = torch.stack([sequence.decode(token) for token in case.input_ids[case.split :]])
    yield compare("split decode logits", {"": (logits, case.expected["decode_logits"])}, VALUES)
    own = one_shot.logits[case.split :]
    yield compare("split decode against prefill", {"": (logits, own)}, OWN_PATHS)
    yield from _cache_checks(case, sequence, " after split decode")


def _uneven_checks(case: GoldenCase, model: Model, one_shot: Trace) -> Iterator[Check]:
    sequence = Sequence(model, case.input_ids.shape[0])
    rest = max(0, case.input_ids.shape[0] - sum(UNEVEN_CHUNKS))
    logits = []
    left = case.input_ids
    for size in (*UNEVEN_CHUNKS, rest):
        chunk, left = left[:size], left[size:]
        if chunk.shape[0]:
            logits.append(sequence.prefill(chunk).logits)
    joined = torch.cat(logits)
    expected = case.expected["prefill_logits"]
    yield compare("uneven chunks logits", {"": (joined, expected)}, VALUES)
    yield compare("uneven chunks against one shot", {"": (joined, one_shot.logits)}, OWN_PATHS)
    yield from _cache_checks(case, sequence, " after uneven chunks")


def _greedy_checks(case: GoldenCase, model: Model) -> Iterator[Check]:
    expected_ids = case.expected["greedy_ids"]
    count = expected_ids.shape[0]
    sequence = Sequence(model, case.input_ids.shape[0] + count)
    rows = [sequence.prefill(case.input_ids).logits[-1]]
    while len(rows) < count:
        rows.append(sequence.decode(rows[-1].argmax()))
    logits = torch.stack(rows)
    wrong = int((logits.argmax(dim=1) != expected_ids).sum())
    yield count_wrong("greedy ids", {"": wrong})
    yield compare("greedy logits", {"": (logits, case.expected["greedy_logits"])}, VALUES)
