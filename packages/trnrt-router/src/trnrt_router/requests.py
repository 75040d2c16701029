"""A client's request to a plan: validated, rendered, tokenized, and routed by its session."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trnrt_router.affinity import RouteKey, prefix_hashes, session_key
from trnrt_router.cache_control import cache_control
from trnrt_router.errors import ContextTooLong, InvalidRequest, NotFound
from trnrt_router.openai.chat import ChatRequest
from trnrt_router.openai.completions import CompletionRequest
from trnrt_router.openai.decode import decode_body, integer, optional_integer
from trnrt_router.plan import ChoicePlan, GenerationPlan, Prompt
from trnrt_router.protocol import EngineInfo, EngineRequest, SamplingParams
from trnrt_router.sampling import (
    checked_num_logprobs,
    fit_to_window,
    read_sampling,
    stop_strings,
    token_id,
)
from trnrt_router.tenant import tenant_of
from trnrt_router.text.chat_template import ChatTemplate
from trnrt_router.text.marks import find_marks
from trnrt_router.text.markup import GLM, Markup, read_markup
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.tools import Tools

# OpenAI's default for this endpoint alone.
COMPLETION_MAX_TOKENS = 16
MAX_PRIORITY = 2**31
# Cached prefixes end at multiples of this many tokens: a shorter prompt needs no marks.
BUNDLE_GRID = 64


class RequestPlanner:
    """Turns request bodies into plans. Holds no state; may run in any thread.

    Args:
        max_choices: sequences one request may start (prompts times `n`).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        markup: Markup = GLM,
        model_name: str,
        max_choices: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._markup = markup
        self._model_name = model_name
        self._max_choices = max_choices
        longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
        # A token holds `longest` bytes at most; a normaliser may merge characters, hence the 2.
        self._max_chars_per_token = 2 * longest

    @classmethod
    def from_dir(cls, model_dir: Path, *, model_name: str, max_choices: int) -> RequestPlanner:
        """Read tokenizer and chat template of a model folder."""
        markup = read_markup(model_dir)
        return cls(
            Tokenizer.from_dir(model_dir),
            ChatTemplate.from_dir(model_dir, markup=markup),
            markup=markup,
            model_name=model_name,
            max_choices=max_choices,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def plan_chat(
        self, body: bytes, headers: Mapping[str, str], info: EngineInfo
    ) -> GenerationPlan:
        """Plan `POST /v1/chat/completions`.

        Raises:
            ApiError: the request is at fault; nothing has been sent to an engine.
        """
        request, ignored = decode_body(body, ChatRequest)
        _refuse_unsupported_chat(request)
        num_logprobs = _chat_num_logprobs(request)
        sampling = read_sampling(
            request, info, max_tokens=_chat_max_tokens(request), num_logprobs=num_logprobs
        )
        tools = None if request.tool_choice == "none" else request.tools
        rendered = self._template.render(
            request.messages,
            tools=tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            reasoning_effort=request.reasoning_effort,
            kwargs=request.chat_template_kwargs or {},
        )
        self._check_chars(len(rendered.text), info, param="messages")
        encoded = self._tokenizer.encode_pieces(rendered)
        _check_prompt(encoded.ids, info, param="messages")
        is_cacheable = len(encoded.ids) >= BUNDLE_GRID
        marks = find_marks(rendered, encoded, self._tokenizer) if is_cacheable else []
        prompt = Prompt(encoded.ids, rendered.starts_in, marks)
        return self._plan(
            request,
            [prompt],
            sampling,
            headers,
            info,
            ignored,
            tools=Tools(tools) if tools else None,
            warnings=rendered.warnings,
        )

    def plan_completion(
        self, body: bytes, headers: Mapping[str, str], info: EngineInfo
    ) -> GenerationPlan:
        """Plan `POST /v1/completions`.

        Raises:
            ApiError: the request is at fault; nothing has been sent to an engine.
        """
        request, ignored = decode_body(body, CompletionRequest)
        _refuse_unsupported_completion(request)
        max_tokens = optional_integer(request.max_tokens, "max_tokens")
        sampling = read_sampling(
            request,
            info,
            max_tokens=COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens,
            num_logprobs=checked_num_logprobs(request.logprobs, "logprobs"),
        )
        prompts = [Prompt(ids, None) for ids in self._completion_prompts(request, info)]
        for prompt in prompts:
            _check_prompt(prompt.token_ids, info, param="prompt")
        return self._plan(request, prompts, sampling, headers, info, ignored)

    def _check_chars(self, num_chars: int, info: EngineInfo, *, param: str) -> None:
        """Refuse a text that cannot fit however it is tokenized, before the work is done."""
        num_tokens = num_chars // self._max_chars_per_token
        if num_tokens >= info.max_model_len:
            raise ContextTooLong.of(num_tokens, info.max_model_len, param=param, at_least=True)

    def _completion_prompts(self, request: CompletionRequest, info: EngineInfo) -> list[list[int]]:
        prompt = request.prompt
        for text in [prompt] if isinstance(prompt, str) else prompt:
            if isinstance(text, str):
                self._check_chars(len(text), info, param="prompt")
        if isinstance(prompt, str):
            return [self._tokenizer.encode_text(prompt)]
        if all(isinstance(item, int | float) for item in prompt):
            return [[token_id(i, "prompt", info.vocab_size) for i in prompt]]  # type: ignore[arg-type]
        if len({type(item) for item in prompt}) > 1:
            raise InvalidRequest(
                "prompt mixes strings and token ids; send one kind", param="prompt"
            )
        return [
            self._tokenizer.encode_text(item)
            if isinstance(item, str)
            else [token_id(i, "prompt", info.vocab_size) for i in item]  # type: ignore[union-attr]
            for item in prompt
        ]

    def _plan(
        self,
        request: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        headers: Mapping[str, str],
        info: EngineInfo,
        ignored: list[str],
        *,
        tools: Tools | None = None,
        warnings: Sequence[str] = (),
    ) -> GenerationPlan:
        n = self._check_model_and_n(request, len(prompts))
        keys = {"session_id": request.session_id, "prompt_cache_key": request.prompt_cache_key}
        session, parent = session_key(keys, headers)
        salt = request.cache_salt or ""
        options = request.stream_options
        reply_id = _reply_id(request)
        priority, tenant = _priority(request.priority), tenant_of(session, headers)
        choices = [
            ChoicePlan(
                request=EngineRequest(
                    request_id=f"{reply_id}-{number * n + choice}",
                    token_ids=prompt.token_ids,
                    sampling=fit_to_window(sampling, info.max_model_len - len(prompt.token_ids)),
                    choice_index=choice,
                    marks=prompt.marks,
                    cache_salt=salt,
                    tenant=tenant,
                    priority=priority,
                    cache=cache_control(request.cache, session=session),
                ),
                starts_in=prompt.starts_in,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(n)
        ]
        return GenerationPlan(
            id=reply_id,
            model=self._model_name,
            created=int(time.time()),
            choices=choices,
            choices_per_prompt=n,
            num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            route=RouteKey(
                session=session,
                parent=parent,
                prefixes=prefix_hashes(prompts[0].token_ids, salt=salt),
            ),
            stop=stop_strings(request.stop),
            include_stop_str=bool(request.include_stop_str_in_output),
            markup=self._markup,
            tools=tools,
            num_logprobs=sampling.num_logprobs,
            is_stream=bool(request.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            ignored_fields=ignored,
            warnings=tuple(warnings),
        )

    def _check_model_and_n(self, request: ChatRequest | CompletionRequest, num_prompts: int) -> int:
        """Return `n` of a request for the model that is served."""
        if request.model is not None and request.model != self._model_name:
            raise NotFound(
                f"no model {request.model!r} here; this server has {self._model_name!r}",
                param="model",
                code="model_not_found",
            )
        n = optional_integer(request.n, "n") or 1
        if n * num_prompts > self._max_choices:
            raise InvalidRequest(
                f"{num_prompts} prompts with n = {n} are {n * num_prompts} sequences, "
                f"at most {self._max_choices} are allowed",
                param="n",
            )
        return n


def _check_prompt(token_ids: list[int], info: EngineInfo, *, param: str) -> None:
    if not token_ids:
        raise InvalidRequest("the prompt is empty: send at least one token", param=param)
    if len(token_ids) >= info.max_model_len:
        raise ContextTooLong.of(len(token_ids), info.max_model_len, param=param)


def _reply_id(request: ChatRequest | CompletionRequest) -> str:
    kind = "chatcmpl" if isinstance(request, ChatRequest) else "cmpl"
    return f"{kind}-{secrets.token_hex(12)}"


def _priority(value: float | None) -> int:
    priority = optional_integer(value, "priority") or 0
    if abs(priority) >= MAX_PRIORITY:
        raise InvalidRequest(f"priority is {priority}, out of range", param="priority")
    return priority


def _chat_max_tokens(request: ChatRequest) -> int | None:
    old = optional_integer(request.max_tokens, "max_tokens")
    new = optional_integer(request.max_completion_tokens, "max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens is {old} and max_completion_tokens {new}; send one of them",
            param="max_tokens",
        )
    return old if new is None else new


def _chat_num_logprobs(request: ChatRequest) -> int | None:
    count = checked_num_logprobs(request.top_logprobs, "top_logprobs")
    if request.logprobs:
        return count or 0
    if count:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _refuse_unsupported_chat(request: ChatRequest) -> None:
    choice = request.tool_choice
    if choice not in (None, "auto", "none"):
        raise InvalidRequest.unsupported("tool_choice", "only auto and none are supported")
    if request.parallel_tool_calls is False:
        raise InvalidRequest.unsupported("parallel_tool_calls", "cannot be switched off")
    if request.modalities not in (None, ["text"]):
        raise InvalidRequest.unsupported("modalities", "only text is supported")
    _refuse_response_format(request.response_format)
    for name in ("audio", "functions", "function_call", "web_search_options"):
        if getattr(request, name) is not None:
            raise InvalidRequest.unsupported(name, "not supported")


def _refuse_unsupported_completion(request: CompletionRequest) -> None:
    _refuse_response_format(request.response_format)
    if request.echo:
        raise InvalidRequest.unsupported("echo", "only false is supported")
    if request.suffix:
        raise InvalidRequest.unsupported("suffix", "not supported")
    if request.best_of is not None:
        n = 1 if request.n is None else integer(request.n, "n")
        if integer(request.best_of, "best_of") != n:
            raise InvalidRequest.unsupported("best_of", f"must equal n, {n}")


def _refuse_response_format(response_format: dict[str, Any] | None) -> None:
    if response_format is not None and response_format.get("type") != "text":
        raise InvalidRequest.unsupported("response_format", "only the type text is supported")
