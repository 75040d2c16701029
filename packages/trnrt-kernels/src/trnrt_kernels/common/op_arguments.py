"""Arguments that the decode and the prefill form of an op share: weights, caches, constants.

Dimensions: N mHC streams, D hidden, M mHC coefficients (N*(N+2)), H KDA heads, K KDA head size,
C KDA channels (H*K), W convolution taps, U conv tail taps (W-1), Q query rank, L latent size,
A attention heads, E query features (A * head size), F value features, G key and value features,
I indexer heads, J index head size, P index pool, O open pool (P-1), R routed experts,
X expert width, Y shared or dense width, V vocabulary. Caches: Z pages, S state slots, T tokens a
page, B pools a page.
"""

from __future__ import annotations

from trnrt_kernels.contract import Argument, DType, Role

ACT, F32 = DType.ACTIVATION, DType.FLOAT32


def weight(name: str, dims: str, dtype: DType = ACT) -> Argument:
    """A weight held as one tensor."""
    return Argument(name, tuple(dims.split()), dtype, Role.WEIGHT)


def matrix(name: str, dims: str) -> Argument:
    """A weight matrix that may also come as FP8 codes + scales."""
    return Argument(name, tuple(dims.split()), ACT, Role.WEIGHT, is_quantisable=True)


def cache(name: str, dims: str, dtype: DType = DType.CACHE) -> Argument:
    """A tensor that lives across steps and is written in place."""
    return Argument(name, tuple(dims.split()), dtype, Role.CACHE)


def step_input(name: str, dims: str, dtype: DType = DType.INT64) -> Argument:
    """A tensor the runner makes for one step."""
    return Argument(name, tuple(dims.split()), dtype, Role.INPUT)


def stream(name: str, dims: str, dtype: DType = ACT) -> Argument:
    """A result of the segment before."""
    return Argument(name, tuple(dims.split()), dtype, Role.STREAM)


def half_weights(half: str) -> tuple[Argument, ...]:
    """mHC coefficients and input norm of the `attn` or `ffn` half of a layer."""
    return (
        weight(f"{half}_hc_fn", "M N*D", F32),
        weight(f"{half}_hc_base", "M", F32),
        weight(f"{half}_hc_scale", "3", F32),
        weight(f"{half}_norm", "D"),
    )


KDA_WEIGHTS = (
    *half_weights("attn"),
    weight("qkv_proj", "3*C D"),
    weight("qkv_conv", "3*C W", F32),
    weight("f_a_proj", "K D"),
    weight("f_b_proj", "C K"),
    weight("dt_bias", "C", F32),
    weight("a_log", "H", F32),
    weight("b_proj", "H D"),
    weight("g_a_proj", "K D"),
    weight("g_b_proj", "C K"),
    weight("o_norm", "K"),
    weight("o_proj", "D C"),
)
KDA_CACHES = (cache("conv_tail", "S U 3*C", ACT), cache("kda_state", "S H K K", F32))

MLA_WEIGHTS = (
    *half_weights("attn"),
    matrix("q_a_proj", "Q D"),
    weight("q_a_norm", "Q"),
    matrix("q_b_proj", "E Q"),
    matrix("kv_a_proj", "L D"),
    weight("kv_a_norm", "L"),
    weight("kv_b_proj", "G L"),
    matrix("o_proj", "D F"),
)
LATENT_CACHE = cache("latents", "Z T L")

INDEXER_WEIGHTS = (
    weight("index_q_proj", "I*J Q"),
    weight("index_k_proj", "J D"),
    weight("index_k_norm", "J"),
    weight("index_k_norm_bias", "J"),
    weight("index_weights_proj", "I D", F32),
    weight("index_gate_proj", "J D"),
    weight("index_ape", "P J", F32),
)
INDEXER_CACHES = (cache("pool_keys", "Z B J"), cache("open_pool", "S O 2 J", ACT))

DENSE_WEIGHTS = (
    *half_weights("ffn"),
    matrix("gate_up_proj", "2*Y D"),
    matrix("down_proj", "D Y"),
)
MOE_WEIGHTS = (
    *half_weights("ffn"),
    weight("router", "R D", F32),
    weight("router_bias", "R", F32),
    matrix("experts_gate_up", "2*R X D"),
    matrix("experts_down", "R D X"),
    matrix("shared_gate_up_proj", "2*Y D"),
    matrix("shared_down_proj", "D Y"),
)

HALF_CONSTANTS = (("rms_norm_eps", float), ("hc_eps", float), ("hc_sinkhorn_iters", int))
GROUP = ("group_name", str)
ROW_TILE = ("row_tile", int)
KDA_CONSTANTS = (*HALF_CONSTANTS, ("linear_lower_bound", float), GROUP)
DSA_CONSTANTS = (
    *HALF_CONSTANTS,
    ("num_attention_heads", int),
    ("index_kpool", int),
    ("index_topk", int),
    ROW_TILE,
    GROUP,
)
DSA_SHARED_CONSTANTS = (
    *HALF_CONSTANTS,
    ("num_attention_heads", int),
    ("index_kpool", int),
    ROW_TILE,
    GROUP,
)
DENSE_CONSTANTS = (*HALF_CONSTANTS, ("swiglu_limit", float), GROUP)
MOE_CONSTANTS = (
    *HALF_CONSTANTS,
    ("swiglu_limit", float),
    ("num_experts_per_tok", int),
    ("n_group", int),
    ("topk_group", int),
    ("norm_topk_prob", bool),
    ("routed_scaling_factor", float),
    ROW_TILE,
    GROUP,
)
