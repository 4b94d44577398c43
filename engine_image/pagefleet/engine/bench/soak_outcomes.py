"""How each request of a soak ended: every one in exactly one way, which its kind must allow. Pure.

answered       all its choices came to an end, with the usage that belongs to them
refused        with the status that its mistake asks for, in OpenAI's shape
busy           503 with Retry-After: the bounded queue is full
left           its client went away before the end, as it was to do
lost           anything else: that is what a soak looks for
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from pagefleet.engine.bench.soak_requests import SoakRequest

FINISH_REASONS = frozenset({"stop", "length"})


class Outcome(StrEnum):
    """Name an end."""

    ANSWERED = "answered"
    REFUSED = "refused"
    BUSY = "busy"
    LEFT = "left"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the client saw of one request."""

    status: int | None = None
    """None when no status came."""
    retry_after: str = ""
    bodies: Sequence[Mapping[str, Any]] = ()
    """The JSON body, or the events of a stream."""
    has_done_event: bool = False
    has_left: bool = False
    failure: str = ""
    """What broke on the way, in the words of the client's library."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One request and its end."""

    kind: str
    outcome: Outcome
    number: int = 0
    """Its place in the mixture of its seed, which says all that was sent."""
    status: int | None = None
    reason: str = ""
    """Why it is lost."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    was_accepted: bool = False
    """The engine began it: it was answered, or its client left with a part of the answer."""
    retry_after_s: int = 0


def result_of(request: SoakRequest, seen: Seen) -> Result:
    """Say how a request ended."""
    if seen.failure:
        return _lost(request, seen, seen.failure)
    if seen.has_left:
        if request.leaving == "never":
            return _lost(request, seen, "its client left, which it was not to do")
        return Result(kind=request.kind, outcome=Outcome.LEFT, status=seen.status, was_accepted=bool(seen.bodies))
    if request.expected_status != HTTPStatus.OK:
        return _refused(request, seen)
    if seen.status == HTTPStatus.SERVICE_UNAVAILABLE:
        if not (seen.retry_after.isdigit() and int(seen.retry_after) > 0):
            return _lost(request, seen, f"503 came with Retry-After {seen.retry_after!r}, not a number of seconds")
        return Result(kind=request.kind, outcome=Outcome.BUSY, status=seen.status, retry_after_s=int(seen.retry_after))
    if seen.status != HTTPStatus.OK:
        return _lost(request, seen, f"status {seen.status} with {_first_error(seen)}")
    if mistake := _find_mistake(request, seen):
        return _lost(request, seen, mistake)
    usage = seen.bodies[-1]["usage"]
    return Result(
        kind=request.kind,
        outcome=Outcome.ANSWERED,
        status=seen.status,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        was_accepted=True,
    )


def _refused(request: SoakRequest, seen: Seen) -> Result:
    if seen.status != request.expected_status:
        return _lost(request, seen, f"status {seen.status} instead of {request.expected_status.value}")
    error = seen.bodies[0].get("error") if seen.bodies else None
    if not isinstance(error, dict) or not error.get("message"):
        return _lost(request, seen, f"status {seen.status} without a sentence: {seen.bodies}")
    return Result(kind=request.kind, outcome=Outcome.REFUSED, status=seen.status)


def _find_mistake(request: SoakRequest, seen: Seen) -> str:
    """Return what is wrong with an answer of status 200; empty when nothing is."""
    if request.is_stream and not seen.has_done_event:
        return f"the stream ended without [DONE], after {len(seen.bodies)} events: {_first_error(seen)}"
    ends: dict[int, str] = {}
    for body in seen.bodies:
        for choice in body.get("choices", ()):
            if choice["index"] in ends:
                return f"choice {choice['index']} went on behind its end"
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice["finish_reason"]
    if set(ends) != set(range(request.choices)):
        return f"choices {sorted(ends)} ended, {request.choices} were asked for"
    if not set(ends.values()) <= FINISH_REASONS:
        return f"the choices ended with {sorted(ends.values())}"
    usage = seen.bodies[-1].get("usage")
    if not usage or usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        return f"the usage is {usage}"
    return ""


def _first_error(seen: Seen) -> str:
    return next((str(body["error"])[:200] for body in seen.bodies if "error" in body), "no error in it")


def _lost(request: SoakRequest, seen: Seen, reason: str) -> Result:
    return Result(kind=request.kind, outcome=Outcome.LOST, status=seen.status, reason=reason)
