"""A bad setting stops the start and names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnrt_engine.config import EngineConfig


@pytest.mark.parametrize(("field", "value"), [("graphs", "maybe"), ("max_waiting", -1)])
def test_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        EngineConfig(model_dir=Path("model"), **{field: value})
