"""The specs of all ops, in both phases.

Letters as in `op_arguments`; b rows of a decode batch, t rows of a prefill chunk, p pages of the
block table, e states a chunk exports, n prompt rows a head computes. Argument order: streams, step
inputs, weights, caches, constants. A reference and a kernel take the same, by the same names.
"""

from __future__ import annotations

from trnrt_kernels.common.op_arguments import (
    DENSE_CONSTANTS,
    DENSE_WEIGHTS,
    DSA_CONSTANTS,
    DSA_SHARED_CONSTANTS,
    GROUP,
    HALF_CONSTANTS,
    INDEXER_CACHES,
    INDEXER_WEIGHTS,
    KDA_CACHES,
    KDA_CONSTANTS,
    KDA_WEIGHTS,
    LATENT_CACHE,
    MLA_WEIGHTS,
    MOE_CONSTANTS,
    MOE_WEIGHTS,
    half_weights,
    step_input,
    stream,
    weight,
)
from trnrt_kernels.contract import Argument, DType, KernelSpec, Limit, Phase, Result

LIMITS = {"N": Limit(least=2, most=8), "W": Limit(least=2, most=8)}
# torch's grouped product takes rows of whole 16 bytes, in bfloat16 too.
MOE_LIMITS = {"N": LIMITS["N"], "D": Limit(multiple_of=8), "X": Limit(multiple_of=8)}

_POSITION_INPUTS = {
    Phase.DECODE: (step_input("positions_B", "b"),),
    Phase.PREFILL: (step_input("start", "1"), step_input("num_tokens", "1")),
}
_SLOT_INPUT = {
    Phase.DECODE: step_input("state_slots_B", "b"),
    Phase.PREFILL: step_input("state_slot", "1"),
}
_PAGE_INPUT = {
    Phase.DECODE: step_input("block_table_BP", "b p"),
    Phase.PREFILL: step_input("block_table_P", "p"),
}
_EXPORT_INPUTS: dict[Phase, tuple[Argument, ...]] = {
    Phase.DECODE: (),
    Phase.PREFILL: (step_input("export_rows_E", "e"), step_input("export_slots_E", "e")),
}
_LIVE_INPUT = {
    Phase.DECODE: step_input("is_live_B", "b", DType.BOOL),
    Phase.PREFILL: step_input("num_tokens", "1"),
}


def op_specs(phase: Phase) -> tuple[KernelSpec, ...]:
    """Specs of the ops and building blocks of one phase."""
    return (
        _embed(phase),
        _kda_half(phase),
        _dsa_half(phase),
        _dsa_shared_half(phase),
        _dense_half(phase),
        _moe_half(phase),
        _head(phase),
        *((_mhc(),) if phase is Phase.DECODE else ()),
    )


def _rows(phase: Phase) -> tuple[str, str]:
    """Suffix letter of names and letter of the row dimension."""
    return ("B", "b") if phase is Phase.DECODE else ("T", "t")


def _streams(phase: Phase) -> tuple[Argument, Result]:
    suffix, rows = _rows(phase)
    argument = stream(f"streams_{suffix}ND", f"{rows} N D")
    return argument, Result(argument.name, argument.dims, DType.ACTIVATION)


def _embed(phase: Phase) -> KernelSpec:
    suffix, rows = _rows(phase)
    return KernelSpec(
        name="embed",
        phase=phase,
        arguments=(step_input(f"token_ids_{suffix}", rows), weight("embed", "V D")),
        constants=(("hc_mult", int), GROUP),
        results=(Result(f"streams_{suffix}ND", (rows, "hc_mult", "D"), DType.ACTIVATION),),
    )


def _kda_half(phase: Phase) -> KernelSpec:
    streams, streams_out = _streams(phase)
    inputs = (*_POSITION_INPUTS[phase], _SLOT_INPUT[phase], *_EXPORT_INPUTS[phase])
    return KernelSpec(
        name="kda_half",
        phase=phase,
        arguments=(streams, *inputs, *KDA_WEIGHTS, *KDA_CACHES),
        constants=KDA_CONSTANTS,
        results=(streams_out,),
        limits=LIMITS,
    )


def _dsa_half(phase: Phase) -> KernelSpec:
    suffix, rows = _rows(phase)
    streams, streams_out = _streams(phase)
    inputs = (*_POSITION_INPUTS[phase], _SLOT_INPUT[phase], _PAGE_INPUT[phase])
    weights = (*MLA_WEIGHTS, *INDEXER_WEIGHTS)
    selected = Result(f"selected_{suffix}X", (rows, "index_topk/index_kpool"), DType.INT64)
    return KernelSpec(
        name="dsa_half",
        phase=phase,
        arguments=(streams, *inputs, *weights, LATENT_CACHE, *INDEXER_CACHES),
        constants=DSA_CONSTANTS,
        results=(streams_out, selected),
        limits={"N": LIMITS["N"]},
    )


def _dsa_shared_half(phase: Phase) -> KernelSpec:
    suffix, rows = _rows(phase)
    streams, streams_out = _streams(phase)
    selected = stream(f"selected_{suffix}X", f"{rows} x", DType.INT64)
    inputs = (*_POSITION_INPUTS[phase], _PAGE_INPUT[phase])
    return KernelSpec(
        name="dsa_shared_half",
        phase=phase,
        arguments=(streams, selected, *inputs, *MLA_WEIGHTS, LATENT_CACHE),
        constants=DSA_SHARED_CONSTANTS,
        results=(streams_out,),
        limits={"N": LIMITS["N"]},
    )


def _dense_half(phase: Phase) -> KernelSpec:
    streams, streams_out = _streams(phase)
    return KernelSpec(
        name="dense_half",
        phase=phase,
        arguments=(streams, *DENSE_WEIGHTS),
        constants=DENSE_CONSTANTS,
        results=(streams_out,),
        limits={"N": LIMITS["N"]},
    )


def _moe_half(phase: Phase) -> KernelSpec:
    streams, streams_out = _streams(phase)
    return KernelSpec(
        name="moe_half",
        phase=phase,
        arguments=(streams, _LIVE_INPUT[phase], *MOE_WEIGHTS),
        constants=MOE_CONSTANTS,
        results=(streams_out,),
        limits=MOE_LIMITS,
    )


def _head(phase: Phase) -> KernelSpec:
    streams, _ = _streams(phase)
    is_decode = phase is Phase.DECODE
    picked = () if is_decode else (step_input("rows_R", "n"),)
    return KernelSpec(
        name="head",
        phase=phase,
        arguments=(streams, *picked, weight("norm", "D"), weight("lm_head", "V D")),
        constants=(("rms_norm_eps", float),),
        results=(
            Result(
                f"logits_{'B' if is_decode else 'R'}V",
                ("b" if is_decode else "n", "V"),
                DType.FLOAT32,
            ),
        ),
    )


def _mhc() -> KernelSpec:
    """The mHC collapse, a building block of all half-layer kernels."""
    return KernelSpec(
        name="mhc",
        phase=Phase.DECODE,
        arguments=(stream("streams_BND", "b N D"), *half_weights("attn")[:3]),
        constants=HALF_CONSTANTS,
        results=(
            Result("hidden_BD", ("b", "D"), DType.ACTIVATION),
            Result("post_BN", ("b", "N"), DType.FLOAT32),
            Result("comb_BNN", ("b", "N", "N"), DType.FLOAT32),
        ),
        limits={"N": LIMITS["N"]},
        is_op=False,
    )
