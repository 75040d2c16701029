"""Kind `render_ids`: which control ids a rendered conversation holds."""

from __future__ import annotations

from functools import cache
from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.render import render
from support.demo_folder import DEMO_DIR
from trnrt_router.text.tokenizer import Tokenizer


def run(record: dict[str, Any]) -> Outcome:
    tokenizer = _demo_tokenizer()
    prompt = render(record)
    ids = tokenizer.encode_prompt(prompt)
    expect = record["expect"]
    if unknown := expect.keys() - {"count_of_special", "decoded_contains"}:
        return failed(f"unknown expectations {sorted(unknown)}")
    for token, count in expect.get("count_of_special", {}).items():
        token_id = tokenizer.control_id(token)
        if token_id is None:
            return failed(f"{token!r} is no control token of the demo model")
        if ids.count(token_id) != count:
            return failed(f"{token!r} is there {ids.count(token_id)} times, not {count}")
    text = tokenizer.decode(ids, keep_control=True)
    if text != prompt.text:
        return failed(f"decodes to {text!r}, not to the prompt")
    if expect.get("decoded_contains", "") not in text:
        return failed(f"{expect['decoded_contains']!r} is not in {text!r}")
    return PASSED


@cache
def _demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(DEMO_DIR)
