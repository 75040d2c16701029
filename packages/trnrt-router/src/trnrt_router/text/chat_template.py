"""Renders messages to a prompt with the checkpoint's own chat template."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, meta

from trnrt_router.errors import ConfigError, InvalidRequest
from trnrt_router.text.controls import Controls, PromptText, new_seam, remove_seams
from trnrt_router.text.conversation import Conversation
from trnrt_router.text.markup import GLM, Markup, Section
from trnrt_router.text.messages import Message, normalize_messages, normalize_tools
from trnrt_router.text.template_environment import new_environment
from trnrt_router.text.tokenizer import read_controls

# The template knows low and high and takes every other spelling for max, the costliest.
REASONING_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_MAX_NAMES, _MAX_NAME_CHARS = 8, 40
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt(PromptText):
    """A prompt ready to be encoded.

    Fields:
        starts_in: the section the answer begins in, by the prompt's last think marker.
        warnings: what the request asked for and the template does differently, for the client.
        conversation: renders parts of the same messages.
    """

    conversation: Conversation = field(repr=False, compare=False)
    starts_in: Section = Section.CONTENT
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Variables:
    """The template's inputs after validation; `seam` breaks up control tokens in their texts."""

    values: dict[str, Any]
    seam: str
    warnings: list[str] = field(default_factory=list)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        controls: the control tokens that only the template may write.
        special_tokens: `bos_token` and the like, visible to the template.
        markup: the family's think markers.

    Raises:
        ConfigError: the template cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        controls: Controls,
        *,
        special_tokens: Mapping[str, str] | None = None,
        markup: Markup = GLM,
    ) -> None:
        self._environment = new_environment()
        try:
            self._template = self._environment.from_string(source)
            self._reads = meta.find_undeclared_variables(self._environment.parse(source))
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat template line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError) as error:  # found by Python in what Jinja made of it
            raise ConfigError(f"the chat template cannot be compiled: {error}") from error
        self._controls = controls
        self._special_tokens = dict(special_tokens or {})
        self._markup = markup

    @classmethod
    def from_dir(cls, model_dir: str | Path, *, markup: Markup = GLM) -> ChatTemplate:
        """Read `chat_template.jinja`, or the template inside `tokenizer_config.json`.

        Raises:
            ConfigError: the folder has none, or it cannot be compiled.
        """
        folder = Path(model_dir)
        config = _tokenizer_config(folder / "tokenizer_config.json")
        own_file = folder / "chat_template.jinja"
        if own_file.exists():
            try:
                source: object = own_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read {own_file}: {error}") from error
        else:
            source = _default_template(config.get("chat_template"))
        if not isinstance(source, str):
            raise ConfigError(f"no chat template in {folder}: chat_template.jinja does not exist")
        return cls(
            source,
            read_controls(folder),
            special_tokens=_special_tokens(config),
            markup=markup,
        )

    def render(
        self,
        messages: object,
        *,
        tools: object = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        reasoning_effort: object = None,
        kwargs: object = None,
    ) -> RenderedPrompt:
        """Render a conversation.

        Args:
            messages, tools: as OpenAI spells them, as parsed from JSON.
            add_generation_prompt: None means yes, unless the final message is continued.
            continue_final_message: end the prompt with exactly the last message's text.
            reasoning_effort: a key of `REASONING_EFFORTS`, None for the template's default.
            kwargs: further template variables (`chat_template_kwargs`).

        Raises:
            InvalidRequest: names the field at fault, or says what the template refused.
        """
        normal = normalize_messages(messages)
        if continue_final_message:
            _check_continuation(normal, add_generation_prompt)
            add_generation_prompt = False
        try:
            variables = self._variables(reasoning_effort, kwargs)
            variables.values["tools"] = self._broken_up(normalize_tools(tools), variables.seam)
            variables.values["add_generation_prompt"] = add_generation_prompt is not False
            conversation = Conversation(
                self._template,
                messages=[self._broken_up_message(m, variables.seam) for m in normal],
                variables=variables.values,
                seam=variables.seam,
            )
            if continue_final_message:
                rendered = self._continue(normal[-1], conversation)
            else:
                rendered = conversation.render(conversation.messages)
            rendered.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                "messages: an unpaired surrogate is no Unicode character", param="messages"
            ) from error
        except RecursionError as error:
            raise InvalidRequest("messages: nested too deeply", param="messages") from error
        prompt = remove_seams(rendered, variables.seam)
        return RenderedPrompt(
            prompt.text,
            prompt.seams,
            conversation=conversation,
            starts_in=self._starts_in(rendered),
            warnings=tuple(variables.warnings),
        )

    def _variables(self, reasoning_effort: object, kwargs: object) -> _Variables:
        if kwargs is None:
            kwargs = {}
        if not isinstance(kwargs, dict):
            _refuse("chat_template_kwargs", "must be an object")
        variables = _Variables(dict(self._special_tokens), new_seam())
        unread = []
        for name, value in kwargs.items():
            where = f"chat_template_kwargs.{name}"
            if name in _RESERVED:
                _refuse(where, f"is set by the request itself; use the field {name}")
            if name == "reasoning_effort":
                if reasoning_effort is not None and value != reasoning_effort:
                    _refuse(where, "differs from the field reasoning_effort")
                reasoning_effort = value
            elif name not in self._reads:
                unread.append(name)
            else:
                variables.values[name] = self._broken_up(value, variables.seam)
        if unread:
            variables.warnings.append(
                f"this model's chat template does not read {_shortened(unread)}"
            )
        if reasoning_effort is not None:
            effort = _known_effort(reasoning_effort)
            variables.values["reasoning_effort"] = effort
            if effort != reasoning_effort:
                variables.warnings.append(
                    f"reasoning_effort {reasoning_effort!r} is served as {effort!r}"
                )
        return variables

    def _continue(self, message: Message, conversation: Conversation) -> str:
        """Render with a stand-in for the last text, cut there, and put the exact text behind."""
        final = dict(message)
        text = final["content"]
        if "reasoning_content" not in final and self._markup.think_close in text:
            # As templates split it: the pair is reasoning, the text behind it is continued.
            head, _, text = text.rpartition(self._markup.think_close)
            head = head.partition(self._markup.think_close)[0]
            final["reasoning_content"] = head.rpartition(self._markup.think_open)[2]
        stand_in = secrets.token_hex(16)
        final["content"] = stand_in
        seam = conversation.seam
        rendered = conversation.render(
            [*conversation.messages[:-1], self._broken_up_message(final, seam)]
        )
        before, found, _ = rendered.rpartition(stand_in)
        if not found:
            _refuse("continue_final_message", "this model's chat template does not support it")
        return before + self._controls.break_up(text, seam)

    def _broken_up_message(self, message: Message, seam: str) -> Message:
        broken_up = {key: self._broken_up(value, seam) for key, value in message.items()}
        content = message["content"]
        if message["role"] == "assistant" and "reasoning_content" not in message:
            # Reasoning kept inside the content: the template must see its tags to split it off.
            # It drops them all, so none of them can reach the prompt.
            head, close, tail = content.rpartition(self._markup.think_close)
            head = self._controls.break_up(head, seam, keep=self._markup.tags)
            broken_up["content"] = head + close + self._controls.break_up(tail, seam)
        return broken_up

    def _broken_up(self, value: Any, seam: str) -> Any:
        """Break up the control tokens in all texts of a JSON value, keys included."""
        if isinstance(value, str):
            return self._controls.break_up(value, seam)
        if isinstance(value, list):
            return [self._broken_up(item, seam) for item in value]
        if isinstance(value, dict):
            return {
                self._controls.break_up(key, seam): self._broken_up(item, seam)
                for key, item in value.items()
            }
        return value

    def _starts_in(self, rendered: str) -> Section:
        # Spellings in messages hold a seam: only the template's own markers are found.
        opened = rendered.rfind(self._markup.think_open)
        closed = rendered.rfind(self._markup.think_close)
        return Section.REASONING if opened > closed else Section.CONTENT


def _shortened(names: list[str]) -> str:
    """List names for a warning; clients choose them, so neither length nor number is trusted."""
    shown = [name[:_MAX_NAME_CHARS] for name in names[:_MAX_NAMES]]
    return ", ".join(shown) + (
        f" and {len(names) - len(shown)} more" if names[len(shown) :] else ""
    )


def _known_effort(effort: object) -> str:
    known = REASONING_EFFORTS.get(effort.lower()) if isinstance(effort, str) else None
    if known is None:
        names = ", ".join(REASONING_EFFORTS)
        raise InvalidRequest.unsupported(
            "reasoning_effort", f"must be one of {names}, not {effort!r}; this model always thinks"
        )
    return known


def _check_continuation(messages: list[Message], add_generation_prompt: bool | None) -> None:
    if add_generation_prompt:
        _refuse("add_generation_prompt", "must be false when continue_final_message is true")
    if messages[-1]["role"] != "assistant":
        _refuse("continue_final_message", "the last message must be the assistant's")
    if messages[-1].get("tool_calls"):
        _refuse("continue_final_message", "the last message has tool_calls and no open text")


def _tokenizer_config(path: Path) -> dict[str, Any]:
    """Read the file that folders may have beside `tokenizer.json`."""
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"cannot read {path}: holds {type(config).__name__}, must be an object")
    return config


def _default_template(given: object) -> object:
    """Return a template as it is, of several named ones the default; None where there is none."""
    if not isinstance(given, list):
        return given
    named = [entry for entry in given if isinstance(entry, dict) and entry.get("name") == "default"]
    return named[-1].get("template") if named else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return the named special tokens (`bos_token`, ...), given as text or as an object."""
    found = {}
    for name, value in config.items():
        if re.fullmatch(r"[a-z]+_token", name):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _refuse(where: str, detail: str) -> NoReturn:
    raise InvalidRequest(f"{where}: {detail}", param=where)
