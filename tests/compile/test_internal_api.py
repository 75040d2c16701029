"""The check that two trnrt packages of different releases do not run together."""

from __future__ import annotations

import importlib

import pytest

import trnrt_compile
import trnrt_engine
import trnrt_kernels
import trnrt_router


@pytest.mark.parametrize(
    "package",
    [trnrt_compile, trnrt_engine, trnrt_router],
    ids=["compile", "engine", "router"],
)
@pytest.mark.parametrize("found", [99, None], ids=["newer", "without"])
def test_import_beside_other_kernels_names_both_versions(
    package: object, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found is None:
        monkeypatch.delattr(trnrt_kernels, "INTERNAL_API")
    else:
        monkeypatch.setattr(trnrt_kernels, "INTERNAL_API", found)
    monkeypatch.setattr(trnrt_kernels, "__version__", "9.9.9")
    with pytest.raises(ImportError, match=r"trnrt-\w+ 0\.\d+\.\d+ .* trnrt-kernels 9\.9\.9 has"):
        importlib.reload(package)  # type: ignore[arg-type]
    monkeypatch.undo()
    importlib.reload(package)  # type: ignore[arg-type]
