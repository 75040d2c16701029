"""Kind `render`: messages to exactly one prompt, with the demo model's template."""

from __future__ import annotations

from functools import cache
from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from support.demo_folder import DEMO_DIR
from trnrt_router.text.chat_template import ChatTemplate, RenderedPrompt


def render(record: dict[str, Any]) -> RenderedPrompt:
    """Render the conversation of a record with the request fields it names."""
    return _demo_template().render(
        record["messages"],
        tools=[
            tool if "function" in tool else {"type": "function", "function": tool}
            for tool in record.get("tools") or []
        ],
        add_generation_prompt=record.get("add_generation_prompt"),
        continue_final_message=record.get("continue_final_message", False),
        reasoning_effort=record.get("reasoning_effort"),
        kwargs=record.get("chat_template_kwargs"),
    )


def run(record: dict[str, Any]) -> Outcome:
    prompt = render(record).text
    allowed = [record["expect_prompt"], *record.get("accept_instead", [])]
    if prompt in allowed or "*" in allowed:
        return PASSED
    return failed(f"rendered {prompt!r}")


@cache
def _demo_template() -> ChatTemplate:
    return ChatTemplate.from_dir(DEMO_DIR)
