"""What can go wrong, as types: each carries the sentence that the user reads."""


class EngineError(Exception):
    """Base of everything that the engine tells a user; `str(error)` is one clear sentence."""


class StartupError(EngineError):
    """Say that the engine cannot start with this configuration, and what would work."""


class RequestRefused(EngineError):
    """Refuse one request for good: it is wrong or can never fit.

    `parameter` is the request field that is wrong, `code` OpenAI's machine-readable reason.
    """

    def __init__(self, message: str, *, parameter: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.code = code


class QueueFull(EngineError):
    """Refuse one request for now: the bounded queue is full; try again after `retry_after_s`."""

    def __init__(self, message: str, *, reason: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineDead(EngineError):
    """Say that the core process is gone, so nothing can be answered any more."""
