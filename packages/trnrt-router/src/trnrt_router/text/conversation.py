"""The messages of one request with everything a template needs to render them again in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, TemplateError

from trnrt_router.errors import InvalidRequest
from trnrt_router.text.controls import PromptText, remove_seams
from trnrt_router.text.messages import Message

# What a template can run into on messages it was not written for.
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class Conversation:
    """Normalized messages whose control tokens are broken up, and the template's variables.

    Attributes:
        messages: may be cut and extended, and rendered again.
        seam: breaks up the control tokens spelled in their texts.
    """

    def __init__(
        self,
        template: Template,
        *,
        messages: list[Message],
        variables: Mapping[str, Any],
        seam: str,
    ) -> None:
        self.messages = messages
        self.seam = seam
        self._template = template
        self._variables = variables

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt of these messages, seams included.

        Raises:
            InvalidRequest: the template refuses them.
        """
        return self._render(messages, self._variables)

    def render_open(self, messages: Sequence[Message]) -> PromptText | None:
        """Render without a generation prompt; None where the template refuses the messages."""
        try:
            text = self._render(messages, {**self._variables, "add_generation_prompt": False})
        except InvalidRequest:
            return None
        return remove_seams(text, self.seam)

    def _render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        try:
            return self._template.render(messages=messages, **variables)
        except _TEMPLATE_FAULTS as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {error}", param="messages"
            ) from error
