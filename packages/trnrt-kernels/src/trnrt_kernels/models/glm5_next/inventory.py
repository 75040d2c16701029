"""Every tensor of the text model: our name, its form in memory and its parts in the checkpoint.

A `HeldTensor` is what the ops take; it is filled from one checkpoint tensor, or from several laid
one after the other along its first dimension (the experts). This table is the only place where
checkpoint names, shapes and dtypes are written down: the loader, the checker, the memory plan and
the maker of tiny checkpoints all read it.

Source: facts of the released checkpoint; the sums are proven to the byte in its tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind

PREFIX = "model.language_model."
SCALE_SUFFIX = "_scale_inv"


class Precision(StrEnum):
    """How a tensor is stored in the released file and held in memory.

    `WIDE` tensors carry the activations' dtype; `STRICT` ones enter float32 arithmetic and are
    held in float32 whatever the activation dtype is.
    """

    BLOCK_FP8 = "block_fp8"  # released as FP8 codes and scales, held wide
    WIDE = "wide"  # released and held as bfloat16
    STRICT_BF16 = "strict_bf16"  # released as bfloat16, held in float32
    STRICT_F32 = "strict_f32"  # released as float32 and refused as anything else


class Component(StrEnum):
    """What a tensor is charged to in the memory plan."""

    EMBED = "embed"
    HEAD = "lm_head"
    NORMS = "norms"
    MHC = "mhc"
    KDA = "kda"
    MLA = "mla"
    INDEXER = "indexer"
    DENSE_FFN = "dense_ffn"
    ROUTER = "router"
    SHARED_EXPERTS = "shared_experts"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Part:
    """One checkpoint tensor; it fills rows [start, stop) of the held tensor's first dimension."""

    hf_name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def scale_name(self) -> str:
        """Name of the FP8 scale partner this tensor would have."""
        return self.hf_name + SCALE_SUFFIX


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor the ops take.

    Fields:
        name: `embed`, `norm`, `lm_head` or a name within a layer, as `o_proj`.
        layer: index of the layer, None for the three of the whole model.
        shape: as held; matrices are [out, in], those of experts [expert, out, in], gate and up
            of an expert one after the other.
    """

    name: str
    layer: int | None
    shape: tuple[int, ...]
    precision: Precision
    component: Component
    parts: tuple[Part, ...]

    @property
    def path(self) -> str:
        """Unique name, as `layers.3.o_proj`."""
        return self.name if self.layer is None else f"layers.{self.layer}.{self.name}"

    @property
    def is_matrix(self) -> bool:
        """Whether it is a weight of a product in the activation dtype; only those may be FP8."""
        return self.precision in (Precision.BLOCK_FP8, Precision.WIDE) and len(self.shape) >= 2

    @property
    def is_product(self) -> bool:
        """Whether it is the matrix of one product; not the embedding, nor stacked experts."""
        return len(self.shape) == 2 and self.name not in ("embed", "index_ape")

    @property
    def is_strict(self) -> bool:
        """Whether it is held in float32 whatever the activation dtype is."""
        return self.precision in (Precision.STRICT_BF16, Precision.STRICT_F32)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def inventory(config: Glm5NextConfig) -> Iterator[HeldTensor]:
    """Yield every tensor of the text model: embedding, layers in order, final norm, head."""
    table = (config.vocab_size, config.hidden_size)
    yield _model_tensor("embed", f"{PREFIX}embed_tokens.weight", table, Component.EMBED)
    for layer in range(config.num_hidden_layers):
        yield from layer_inventory(config, layer)
    norm = (config.hidden_size,)
    yield _model_tensor("norm", f"{PREFIX}norm.weight", norm, Component.NORMS)
    yield _model_tensor("lm_head", "lm_head.weight", table, Component.HEAD)


def layer_inventory(config: Glm5NextConfig, layer: int) -> Iterator[HeldTensor]:
    """Yield the tensors of one layer: attention half, then feed-forward half."""
    maker = _LayerTensors(config, layer)
    yield from maker.stream_tensors("attn", "input_layernorm")
    if config.layer_types[layer] is LayerKind.KDA:
        yield from maker.kda_tensors()
    else:
        yield from maker.mla_tensors()
        if config.indexer_types[layer] is IndexerKind.FULL:
            yield from maker.indexer_tensors()
    yield from maker.stream_tensors("ffn", "post_attention_layernorm")
    if config.mlp_layer_types[layer] is FfnKind.DENSE:
        yield from maker.ffn_tensors("", "mlp", config.intermediate_size, Component.DENSE_FFN)
    else:
        yield from maker.moe_tensors()


def _model_tensor(
    name: str, hf_name: str, shape: tuple[int, ...], component: Component
) -> HeldTensor:
    parts = (Part(hf_name, shape, 0, shape[0]),)
    return HeldTensor(name, None, shape, Precision.WIDE, component, parts)


class _LayerTensors:
    """Makes the entries of one layer's tensors."""

    def __init__(self, config: Glm5NextConfig, layer: int) -> None:
        self.config = config
        self.layer = layer
        self.prefix = f"{PREFIX}layers.{layer}."

    def tensor(
        self,
        name: str,
        hf_name: str,
        shape: tuple[int, ...],
        component: Component,
        precision: Precision = Precision.WIDE,
        *,
        shape_in_file: tuple[int, ...] | None = None,
    ) -> HeldTensor:
        """An entry filled from one checkpoint tensor."""
        part = Part(self.prefix + hf_name, shape_in_file or shape, 0, shape[0])
        return HeldTensor(name, self.layer, shape, precision, component, (part,))

    def joined(
        self,
        name: str,
        hf_names: list[str],
        shape: tuple[int, ...],
        component: Component,
        precision: Precision = Precision.WIDE,
        *,
        shape_in_file: tuple[int, ...] | None = None,
    ) -> HeldTensor:
        """An entry of several checkpoint tensors of one shape, one below the other."""
        rows = shape[0]
        parts = tuple(
            Part(self.prefix + hf_name, shape_in_file or shape, rows * i, rows * (i + 1))
            for i, hf_name in enumerate(hf_names)
        )
        held = (rows * len(hf_names), *shape[1:])
        return HeldTensor(name, self.layer, held, precision, component, parts)

    def stream_tensors(self, half: str, hf_norm: str) -> Iterator[HeldTensor]:
        """The mHC coefficients and the input norm of a half."""
        streams, hidden = self.config.hc_mult, self.config.hidden_size
        mixes = streams * (2 + streams)
        mhc = Component.MHC
        fn_shape = (mixes, streams * hidden)
        yield self.tensor(f"{half}_hc_fn", f"hc_{half}_fn", fn_shape, mhc, Precision.STRICT_BF16)
        yield self.tensor(f"{half}_hc_base", f"hc_{half}_base", (mixes,), mhc, Precision.STRICT_F32)
        yield self.tensor(f"{half}_hc_scale", f"hc_{half}_scale", (3,), mhc, Precision.STRICT_F32)
        yield self.tensor(f"{half}_norm", f"{hf_norm}.weight", (hidden,), Component.NORMS)

    def kda_tensors(self) -> Iterator[HeldTensor]:
        """Linear attention: projections, short convolutions, decay and output gates."""
        config, kda = self.config, Component.KDA
        hidden, size, head = config.hidden_size, config.linear_size, config.linear_head_dim
        heads, taps = config.linear_num_heads, config.linear_conv_kernel_dim
        matrices = {
            "f_a_proj": (head, hidden),
            "f_b_proj": (size, head),
            "b_proj": (heads, hidden),
            "g_a_proj": (head, hidden),
            "g_b_proj": (size, head),
            "o_norm": (head,),
            "o_proj": (hidden, size),
        }
        names = [f"self_attn.{letter}_proj.weight" for letter in "qkv"]
        yield self.joined("qkv_proj", names, (size, hidden), kda)
        for name, shape in matrices.items():
            yield self.tensor(name, f"self_attn.{name}.weight", shape, kda)
        names = [f"self_attn.{letter}_conv1d.weight" for letter in "qkv"]
        strict, in_file = Precision.STRICT_BF16, (size, 1, taps)
        yield self.joined("qkv_conv", names, (size, taps), kda, strict, shape_in_file=in_file)
        yield self.tensor("dt_bias", "self_attn.dt_bias", (size,), kda, Precision.STRICT_F32)
        yield self.tensor("a_log", "self_attn.A_log", (heads,), kda, Precision.STRICT_F32)

    def mla_tensors(self) -> Iterator[HeldTensor]:
        """Latent attention of a DSA layer."""
        config, heads = self.config, self.config.num_attention_heads
        hidden, q_rank, kv_rank = config.hidden_size, config.q_lora_rank, config.kv_lora_rank
        kv_size = config.qk_nope_head_dim + config.v_head_dim
        tensors = {
            "q_a_proj": ("q_a_proj", (q_rank, hidden), Precision.BLOCK_FP8),
            "q_a_norm": ("q_a_layernorm", (q_rank,), Precision.WIDE),
            "q_b_proj": (
                "q_b_proj",
                (heads * config.qk_nope_head_dim, q_rank),
                Precision.BLOCK_FP8,
            ),
            "kv_a_proj": ("kv_a_proj_with_mqa", (kv_rank, hidden), Precision.BLOCK_FP8),
            "kv_a_norm": ("kv_a_layernorm", (kv_rank,), Precision.WIDE),
            "kv_b_proj": ("kv_b_proj", (heads * kv_size, kv_rank), Precision.WIDE),
            "o_proj": ("o_proj", (hidden, heads * config.v_head_dim), Precision.BLOCK_FP8),
        }
        for name, (hf_name, shape, precision) in tensors.items():
            yield self.tensor(name, f"self_attn.{hf_name}.weight", shape, Component.MLA, precision)

    def indexer_tensors(self) -> Iterator[HeldTensor]:
        """Token selection of a DSA layer with its own indexer."""
        config = self.config
        hidden, dim, heads = config.hidden_size, config.index_head_dim, config.index_n_heads
        wide, strict = Precision.WIDE, Precision.STRICT_BF16
        tensors = {
            "index_q_proj": ("wq_b.weight", (heads * dim, config.q_lora_rank), wide),
            "index_k_proj": ("wk.weight", (dim, hidden), wide),
            "index_k_norm": ("k_norm.weight", (dim,), wide),
            "index_k_norm_bias": ("k_norm.bias", (dim,), wide),
            "index_weights_proj": ("weights_proj.weight", (heads, hidden), strict),
            "index_gate_proj": ("index_kpool_compress_gate", (dim, hidden), wide),
            "index_ape": ("index_kpool_compress_ape", (config.index_kpool, dim), strict),
        }
        for name, (hf_name, shape, precision) in tensors.items():
            yield self.tensor(
                name, f"self_attn.indexer.{hf_name}", shape, Component.INDEXER, precision
            )

    def ffn_tensors(
        self, name_prefix: str, hf_module: str, width: int, component: Component
    ) -> Iterator[HeldTensor]:
        """A SwiGLU block of the given width, dense or shared: gate over up, and down."""
        hidden, fp8 = self.config.hidden_size, Precision.BLOCK_FP8
        names = [f"{hf_module}.{name}_proj.weight" for name in ("gate", "up")]
        yield self.joined(f"{name_prefix}gate_up_proj", names, (width, hidden), component, fp8)
        down, shape = f"{hf_module}.down_proj.weight", (hidden, width)
        yield self.tensor(f"{name_prefix}down_proj", down, shape, component, fp8)

    def moe_tensors(self) -> Iterator[HeldTensor]:
        """Router, shared expert and the stacked routed experts."""
        config, num_experts = self.config, self.config.n_routed_experts
        yield self.tensor(
            "router",
            "mlp.gate.weight",
            (num_experts, config.hidden_size),
            Component.ROUTER,
            Precision.STRICT_BF16,
        )
        yield self.tensor(
            "router_bias",
            "mlp.gate.e_score_correction_bias",
            (num_experts,),
            Component.ROUTER,
            Precision.STRICT_F32,
        )
        shared_width = config.moe_intermediate_size * config.n_shared_experts
        yield from self.ffn_tensors(
            "shared_", "mlp.shared_experts", shared_width, Component.SHARED_EXPERTS
        )
        width, hidden = config.moe_intermediate_size, config.hidden_size
        yield self._stacked("experts_gate_up", ("gate", "up"), (width, hidden))
        yield self._stacked("experts_down", ("down",), (hidden, width))

    def _stacked(
        self, name: str, projections: tuple[str, ...], shape: tuple[int, int]
    ) -> HeldTensor:
        """Projections of all experts: those of one expert are neighbours in the first dimension."""
        hf_names = [
            f"{self.prefix}mlp.experts.{expert}.{projection}_proj.weight"
            for expert in range(self.config.n_routed_experts)
            for projection in projections
        ]
        parts = tuple(Part(hf_name, shape, i, i + 1) for i, hf_name in enumerate(hf_names))
        held = (len(parts), *shape)
        return HeldTensor(name, self.layer, held, Precision.BLOCK_FP8, Component.EXPERTS, parts)
