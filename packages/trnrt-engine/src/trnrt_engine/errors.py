"""What can go wrong in an engine.

    TrnrtEngineError
    |-- InvalidRequest        refused at submission: a value the client can change
    |   |-- ContextTooLong    the prompt leaves no room in the window
    |   |-- RequestTooLarge   the page pool could never hold it
    |   `-- DuplicateRequest  the id is in use
    |-- EngineOverloaded      refused for now, with a Retry-After
    |-- EngineUnavailable     draining, closed, or its loop has died
    |-- ModelRefused          a model folder or a setting that cannot be served
    |-- GoldenError           a folder holds no golden data to verify against
    |-- GraphMissing          a compiled graph that was asked for is not there
    |-- SelfTestFailed        the prefix cache changes an answer, or cannot give one back
    |-- DeadlineExceeded      not started in time
    |-- StepFailed            the step that carried the request raised
    |-- NonFiniteOutput       NaN or overflow in the request's own row
    `-- IntegrityError        this program is wrong: accounting does not add up

The last four reach a client as `RequestError` in its final delta, the others at once.
"""

from __future__ import annotations

from trnrt_engine.api import RequestError


class TrnrtEngineError(Exception):
    """Root of everything this package raises on purpose."""

    def as_request_error(self) -> RequestError:
        """Put into the form that crosses a wire."""
        return RequestError(type(self).__name__, str(self))


class InvalidRequest(TrnrtEngineError, ValueError):
    """A request asks for something out of range; `param` names the field."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """The prompt does not leave room for one generated token in the window."""


class RequestTooLarge(InvalidRequest):
    """Prompt and output together need more pages than the engine has."""


class DuplicateRequest(InvalidRequest):
    """A request with this id is waiting or running."""


class EngineOverloaded(TrnrtEngineError):
    """The waiting queue is full; `retry_after_s` estimates when a place is free."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(TrnrtEngineError):
    """The engine takes no requests: it drains, is closed, or its loop has died."""


class ModelRefused(TrnrtEngineError, ValueError):
    """A model folder holds, or a setting asks for, what cannot be served."""


class GraphMissing(TrnrtEngineError):
    """The compiled graphs that were asked for are not in the cache."""


class SelfTestFailed(TrnrtEngineError):
    """At start-up the prefix cache changed an answer or did not hit."""


class DeadlineExceeded(TrnrtEngineError):
    """A waiting request was not started before its deadline."""


class StepFailed(TrnrtEngineError):
    """A step raised; the requests it carried cannot continue."""


class NonFiniteOutput(TrnrtEngineError):
    """A row's logits hold NaN or infinity."""


class GoldenError(TrnrtEngineError, ValueError):
    """A folder holds no golden data, or it cannot be read."""


class IntegrityError(TrnrtEngineError):
    """Pages, slots or counts do not add up."""
