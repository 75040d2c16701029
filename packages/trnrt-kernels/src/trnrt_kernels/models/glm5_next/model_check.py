"""Check a model folder without loading its weights, and say in plain words what is wrong.

Reads configuration, headers, tokenizer and template; a folder of 300 GB takes seconds. Torch is
not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trnrt_kernels.errors import CheckpointError, UnsupportedConfig
from trnrt_kernels.models.checkpoint import Checkpoint, open_checkpoint
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.tensor_check import FP8, match_tensors

TEMPLATE_FILE = "chat_template.jinja"
# The parser of answers and the renderer of prompts look these up by name.
CONTROL_TOKENS = (
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)


class Level(StrEnum):
    """How bad a finding is: `WRONG` stops the model from being served."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    subject: str
    message: str


def check_model(folder: Path) -> Iterator[Finding]:
    """Yield everything there is to say about a model folder, part by part."""
    if not folder.is_dir():
        yield Finding(Level.WRONG, "folder", f"there is no folder {folder}")
        return
    config: Glm5NextConfig | None = None
    try:
        config = Glm5NextConfig.from_dir(folder)
    except UnsupportedConfig as error:
        yield Finding(Level.WRONG, "config", str(error))
    else:
        yield Finding(Level.OK, "config", describe(config))
    yield from _check_weights(folder, config)
    yield from _check_tokenizer(folder, config)
    yield from _check_template(folder)
    yield from _check_generation_config(folder, config)


def describe(config: Glm5NextConfig) -> str:
    """The model in one line."""
    return (
        f"{config.family}, {config.num_hidden_layers} layers "
        f"({len(config.kda_layers)} KDA, {len(config.dsa_layers)} DSA), hidden "
        f"{config.hidden_size}, {config.n_routed_experts} experts, window "
        f"{config.max_position_embeddings}"
    )


def _check_weights(folder: Path, config: Glm5NextConfig | None) -> Iterator[Finding]:
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError as error:
        yield from (Finding(Level.WRONG, "files", text) for text in error.findings)
        return
    yield Finding(
        Level.OK,
        "files",
        f"{len(checkpoint.files)} safetensors, {len(checkpoint.entries):,} tensors, "
        f"{checkpoint.tensor_bytes:,} bytes",
    )
    declared = checkpoint.declared_bytes
    if declared is not None and declared != checkpoint.tensor_bytes:
        yield Finding(
            Level.NOTE,
            "files",
            f"the index says {declared:,} bytes of tensors, there are {checkpoint.tensor_bytes:,}",
        )
    if config is not None:
        yield from _check_tensors(checkpoint, config)


def _check_tensors(checkpoint: Checkpoint, config: Glm5NextConfig) -> Iterator[Finding]:
    try:
        found = match_tensors(config, checkpoint.entries)
    except CheckpointError as error:
        yield from (Finding(Level.WRONG, "tensors", text) for text in error.findings)
        return
    parts = [(entry, scale) for tensor in found for _, entry, scale in tensor.parts]
    used = len(parts) + sum(scale is not None for _, scale in parts)
    fp8 = sum(entry.dtype == FP8 for entry, _ in parts)
    skipped = len(checkpoint.entries) - used
    yield Finding(
        Level.OK,
        "tensors",
        f"the text model is complete: {len(parts):,} weights, {fp8:,} of them FP8; "
        f"{skipped:,} draft and vision tensors are skipped",
    )


def _check_tokenizer(folder: Path, config: Glm5NextConfig | None) -> Iterator[Finding]:
    raw, fault = _read_json(folder / "tokenizer.json")
    if fault:
        yield Finding(Level.WRONG, "tokenizer", fault)
        return
    try:
        vocabulary = {str(token): int(index) for token, index in raw["model"]["vocab"].items()}
        added = {str(entry["content"]): int(entry["id"]) for entry in raw.get("added_tokens", [])}
    except (KeyError, TypeError, ValueError, AttributeError):
        yield Finding(Level.WRONG, "tokenizer", "tokenizer.json has no vocabulary trnrt can read")
        return
    ids = {**vocabulary, **added}
    missing = [token for token in CONTROL_TOKENS if token not in added]
    if missing:
        yield Finding(Level.WRONG, "tokenizer", f"control tokens are missing: {' '.join(missing)}")
    largest = max(ids.values(), default=-1)
    if config is not None and largest >= config.vocab_size:
        yield Finding(
            Level.WRONG,
            "tokenizer",
            f"its largest id is {largest}, but the model has {config.vocab_size} rows",
        )
    elif not missing:
        yield Finding(Level.OK, "tokenizer", f"{len(ids):,} tokens, {len(added)} of them added")
    if not (folder / "tokenizer_config.json").is_file():
        yield Finding(Level.NOTE, "tokenizer", "tokenizer_config.json is missing")


def _check_template(folder: Path) -> Iterator[Finding]:
    try:
        template = _read_template(folder)
    except (OSError, UnicodeDecodeError) as error:
        yield Finding(Level.WRONG, "template", f"cannot read {TEMPLATE_FILE}: {error}")
        return
    if not template.strip():
        message = f"no {TEMPLATE_FILE}, or it is empty: chat requests cannot be rendered"
        yield Finding(Level.WRONG, "template", message)
    elif find_spec("jinja2") is None:
        yield Finding(Level.NOTE, "template", "there, but its syntax was not checked: no jinja2")
    else:
        yield _check_syntax(template)


def _read_template(folder: Path) -> str:
    """The template of its own file, else the one inside tokenizer_config.json, else nothing."""
    path = folder / TEMPLATE_FILE
    if path.exists():
        return path.read_text(encoding="utf-8")
    raw, _ = _read_json(folder / "tokenizer_config.json")
    source = raw.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else ""


def _check_syntax(template: str) -> Finding:
    import jinja2
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        environment.parse(template)
    except jinja2.TemplateSyntaxError as error:
        return Finding(Level.WRONG, "template", f"line {error.lineno}: {error.message}")
    return Finding(Level.OK, "template", f"{len(template.splitlines())} lines, syntax is fine")


def _check_generation_config(folder: Path, config: Glm5NextConfig | None) -> Iterator[Finding]:
    path = folder / "generation_config.json"
    if not path.exists():
        if config is not None and not config.eos_token_ids:
            message = "no generation_config.json and no eos_token_id: answers end by length only"
            yield Finding(Level.NOTE, "generation", message)
        return
    raw, fault = _read_json(path)
    if fault:
        yield Finding(Level.WRONG, "generation", fault)
        return
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    vocab_size = config.vocab_size if config is not None else None
    wrong = [i for i in ids if not isinstance(i, int) or i < 0 or (vocab_size and i >= vocab_size)]
    if wrong:
        yield Finding(Level.WRONG, "generation", f"eos_token_id {wrong} are no token ids")
    else:
        yield Finding(Level.OK, "generation", f"answers end at {ids or 'the ids of config.json'}")


def _read_json(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object and an empty string, or what is wrong with the file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except OSError as error:
        return {}, f"cannot read {path.name}: {error.strerror}"
    except ValueError as error:
        return {}, f"{path.name} is not JSON: {error}"
    return (raw, "") if isinstance(raw, dict) else ({}, f"{path.name} is no JSON object")
