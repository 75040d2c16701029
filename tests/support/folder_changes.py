"""Changes to a model folder, as case records of kind `files` spell them.

`{"delete": glob}`, `{"truncate": {"file": name, "bytes": n}}` (or a name or glob alone: half of
it), `{"write": {"file": name, "text" | "json" | "merge": ...}}`,
`{"rename_tensor": {"from": name, "to": name}}`; a list makes several changes in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

INDEX = "model.safetensors.index.json"


def change_folder(folder: Path, change: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Apply a record's change.

    Raises:
        ValueError: a change of an unknown spelling, or one that touches nothing.
    """
    if isinstance(change, Sequence):
        for single in change:
            change_folder(folder, single)
        return
    if not change:
        raise ValueError("the record changes nothing")
    for verb, argument in change.items():
        if verb not in _VERBS:
            raise ValueError(f"unknown change {verb!r}: known: {', '.join(_VERBS)}")
        _VERBS[verb](folder, argument)


def _delete(folder: Path, argument: Any) -> None:
    for path in _files(folder, argument):
        path.unlink()


def _truncate(folder: Path, argument: Any) -> None:
    for path in _files(folder, argument):
        size = path.stat().st_size
        kept = _get(argument, "bytes", "to_bytes", "size", "to")
        removed = _get(argument, "by", "remove_bytes", "cut")
        if kept is None:
            kept = size // 2 if removed is None else size - removed
        content = path.read_bytes()
        path.write_bytes(content[:kept])


def _write(folder: Path, argument: Any) -> None:
    if not isinstance(argument, Mapping):
        raise ValueError(f"write {argument!r} is no object")
    name = _get(argument, "file", "path", "name")
    if name is None:
        for file_name, content in argument.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / file_name).write_text(text, encoding="utf-8")
        return
    path = folder / name
    merged, parsed = _get(argument, "merge", "set"), _get(argument, "json")
    text = _get(argument, "text", "content", "body")
    if merged is not None:
        _write_json(path, _merge(json.loads(path.read_text(encoding="utf-8")), merged))
    elif parsed is not None:
        _write_json(path, parsed)
    elif text is not None:
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    else:
        raise ValueError(f"write {argument!r} says nothing to write")


def _rename_tensor(folder: Path, argument: Any) -> None:
    """Rename a tensor in its file and, where there is one, in the index."""
    if isinstance(argument, Mapping):
        old, new = _get(argument, "from", "old", "name"), _get(argument, "to", "new")
        renames = {old: new} if old is not None else dict(argument)
    else:
        old, new = argument
        renames = {old: new}
    for old, new in renames.items():
        holders = [p for p in folder.glob("*.safetensors") if old in load_file(p)]
        if not holders:
            raise ValueError(f"no file holds a tensor {old!r}")
        for path in holders:
            tensors = {new if name == old else name: t for name, t in load_file(path).items()}
            save_file(tensors, path)
        if (folder / INDEX).exists():
            raw = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            raw["weight_map"][new] = raw["weight_map"].pop(old)
            _write_json(folder / INDEX, raw)


_VERBS: dict[str, Callable[[Path, Any], None]] = {
    "delete": _delete,
    "truncate": _truncate,
    "write": _write,
    "rename_tensor": _rename_tensor,
}


def _files(folder: Path, argument: Any) -> list[Path]:
    pattern = argument if isinstance(argument, str) else _get(argument, "file", "path", "glob")
    found = sorted(folder.glob(pattern)) if pattern else []
    if not found:
        raise ValueError(f"no file matches {pattern!r}")
    return found


def _get(argument: Any, *names: str) -> Any:
    if not isinstance(argument, Mapping):
        return None
    return next((argument[name] for name in names if name in argument), None)


def _merge(raw: Any, changes: Any) -> Any:
    if not (isinstance(raw, dict) and isinstance(changes, Mapping)):
        return changes
    return raw | {name: _merge(raw.get(name), value) for name, value in changes.items()}


def _write_json(path: Path, raw: Any) -> None:
    path.write_text(json.dumps(raw), encoding="utf-8")
