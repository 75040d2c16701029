"""Numbers of a reply: token counts, and log-probabilities that JSON can hold."""

from __future__ import annotations

from trnrt_router.generation import Generation
from trnrt_router.openai.common import CompletionTokensDetails, PromptTokensDetails, Usage

# OpenAI's stand-in for minus infinity, which JSON cannot say.
LOWEST_LOGPROB = -9999.0


def usage_of(generation: Generation) -> Usage:
    """Count what a generation has used so far."""
    num_prompt = generation.plan.num_prompt_tokens
    num_output = generation.num_output_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(generation.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(generation.num_reasoning_tokens),
    )


def finite(logprob: float) -> float:
    """Return a log-probability, or `LOWEST_LOGPROB` for anything below it."""
    return max(logprob, LOWEST_LOGPROB)
