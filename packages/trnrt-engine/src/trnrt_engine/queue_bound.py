"""Whether one more request is taken, and if not, when it would be."""

from __future__ import annotations

from collections import deque

from trnrt_engine.errors import EngineOverloaded

MIN_RETRY_S, MAX_RETRY_S = 1.0, 3600.0


class Turnover:
    """Estimate when a place is free from how often requests ended while there was work."""

    WINDOW = 32

    def __init__(self, now_s: float) -> None:
        self._times_s: deque[float] = deque([now_s], maxlen=self.WINDOW)

    def record_end(self, now_s: float) -> None:
        """Note that a request ended."""
        self._times_s.append(now_s)

    def next_place_in_s(self, now_s: float) -> float:
        """Return the mean time between ends, the one still open included."""
        return (now_s - self._times_s[0]) / len(self._times_s)


class QueueBound:
    """Bound what is taken, by number and by the seconds its prompts need.

    Args:
        max_waiting: requests beyond those that can run at once.
        max_prefill_s: of the prompts that are not computed; what comes next is not among them, so
            one that needs longer is taken when nothing is before it.
    """

    def __init__(self, *, max_waiting: int, max_prefill_s: float, now_s: float) -> None:
        self._max_waiting = max_waiting
        self._max_prefill_s = max_prefill_s
        self._turnover = Turnover(now_s)

    def begin(self, now_s: float) -> None:
        """Note that a request comes after nothing was left to do."""
        self._turnover = Turnover(now_s)

    def record_end(self, now_s: float) -> None:
        """Note that a request ended."""
        self._turnover.record_end(now_s)

    def check(
        self,
        *,
        num_requests: int,
        num_places: int,
        num_tokens: int,
        tokens_per_s: float | None,
        now_s: float,
    ) -> None:
        """Pass if one more request may come.

        Args:
            num_requests: taken and not ended. num_places: how many can run at once.
            num_tokens: of the prompts taken, not computed.
            tokens_per_s: speed of prefill; None while it is not known, then it bounds nothing.

        Raises:
            EngineOverloaded: it may not.
        """
        if num_requests >= num_places + self._max_waiting:
            raise _overloaded(
                f"{num_requests} requests are waiting or running, the most this engine takes",
                self._turnover.next_place_in_s(now_s),
            )
        prefill_s = num_tokens / tokens_per_s if tokens_per_s else 0.0
        if prefill_s > self._max_prefill_s:
            raise _overloaded(
                f"the prompts that wait need about {prefill_s:.0f} s to be computed, the most "
                f"this engine takes is {self._max_prefill_s:g} s",
                prefill_s - self._max_prefill_s,
            )


def _overloaded(reason: str, retry_after_s: float) -> EngineOverloaded:
    retry_after_s = min(max(retry_after_s, MIN_RETRY_S), MAX_RETRY_S)
    return EngineOverloaded(
        f"{reason}: retry in about {retry_after_s:.0f} s", retry_after_s=retry_after_s
    )
