"""What requests are told: deltas gathered until the step is over, and counted."""

from __future__ import annotations

import logging

from trnrt_engine.api import FinishReason, RequestError, TokenDelta, TokenLogprob
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import StepResult
from trnrt_engine.request import Request

logger = logging.getLogger(__name__)


class Outbox:
    """Collect the deltas of one step, in the order things happened."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._deltas: list[TokenDelta] = []

    def take(self) -> list[TokenDelta]:
        """Hand out what was collected since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def put_token(
        self,
        request: Request,
        result: StepResult,
        *,
        row: int,
        reason: FinishReason | None,
        now_s: float,
    ) -> None:
        """Tell of the token `result` drew in `row`, already the request's newest output."""
        metrics, token_id = self._metrics, result.token_ids[row]
        metrics.generation_tokens += 1
        if request.last_token_s is None:
            metrics.time_to_first_token_s.observe(now_s - request.arrival_s)
        else:
            metrics.inter_token_s.observe(now_s - request.last_token_s)
        request.last_token_s = now_s
        num_logprobs = request.spec.sampling.num_logprobs
        logprobs = None
        if num_logprobs is not None:
            top = result.top[row][:num_logprobs] if num_logprobs else []
            logprobs = [TokenLogprob(token_id, result.logprobs[row], top)]
        self._put(request, reason, token_ids=[token_id], logprobs=logprobs)

    def put_end(
        self, request: Request, reason: FinishReason, *, error: RequestError | None = None
    ) -> None:
        """Tell of an end that came without a token."""
        self._put(request, reason, error=error)

    def _put(
        self,
        request: Request,
        reason: FinishReason | None,
        *,
        token_ids: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        error: RequestError | None = None,
    ) -> None:
        outputs, match = request.output_token_ids, request.match
        cache_report, request.unsent_report = request.unsent_report, None
        self._deltas.append(
            TokenDelta(
                request_id=request.request_id,
                token_ids=token_ids or [],
                logprobs=logprobs,
                finish_reason=reason,
                stop_token_id=outputs[-1] if reason is FinishReason.STOP else None,
                error=error,
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=match.state_depth,
                num_output_tokens=len(outputs),
                cache_report=cache_report,
            )
        )
        if reason is None:
            return
        logger.info(
            "request ended request=%s reason=%s prompt_tokens=%d output_tokens=%d "
            "cache=%s cached_tokens=%d kv_depth=%d replayed=%d tier=%s preemptions=%d",
            *(request.request_id, reason, request.num_prompt_tokens, len(outputs)),
            *(match.reason, match.state_depth, match.kv_depth, match.replayed),
            *(match.tier or "none", request.num_preemptions),
        )
        match reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                self._metrics.requests_finished += 1
            case FinishReason.ERROR:
                self._metrics.requests_failed += 1
            case FinishReason.ABORT:
                self._metrics.requests_aborted += 1
