"""Which records the product must satisfy today; the others wait for a later part by name."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

# Which later part of the product a whole file waits for.
_LATER_AREAS = {
    "streaming_sse": "the full API",
    "api": "the full API",
    "logprobs": "the full API",
    "structured_output": "constrained decoding",
    "router": "the full API",
    "neuron_ops": "ranks and kernels",
    "compile_cache": "the compile pipeline",
}
_LATER_KINDS = {
    "fp8_requant": "kernels",
    "ranks": "ranks",
    "launcher": "ranks",
    "kernel_guard": "kernels",
}


def waits_for(record: Record) -> str | None:
    """The part of the product this record waits for, None when it is due now."""
    if part := _LATER_KINDS.get(record["kind"]) or _LATER_AREAS.get(record["area"]):
        return part
    setup = record.get("setup", {})
    if setup.get("tp", 1) != 1 or setup.get("cp", 1) != 1:
        return "ranks"
    if record["kind"] == "weights" and record.get("tp", 1) != 1:
        return "ranks"
    return None
