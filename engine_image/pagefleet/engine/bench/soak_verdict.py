"""What a soak must hold: one sentence for each broken rule. Pure.

1. No request is lost, and the server's counters agree with what the clients saw.
2. The memory of both processes is flat.
3. At every sample the KV blocks add up, and afterwards nothing runs, waits or holds a block.
4. The server still answers, and ends with 0 on SIGTERM.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pagefleet.engine.bench.server_metrics import Growth
from pagefleet.engine.bench.soak_memory import LEAST_SAMPLES, MIB, MOST_GROWTH, MemoryLevels
from pagefleet.engine.bench.soak_outcomes import Outcome, Result

REASONS = ("stop", "length", "abort", "error")
"""Finish reasons of the server's counter."""
MOST_SENTENCES = 5
"""Lost requests that are told one by one."""

Capacity = Mapping[str, float | None]
"""The numbers of one `/capacity`."""


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """How the server was found when all clients had gone."""

    capacity: Capacity
    """The last `/capacity`, taken when nothing was in flight, or when waiting for that was given up."""
    still_answers: bool
    exit_code: int | None = None
    """What SIGTERM led to; None when the server was not ours to stop."""


def broken_rules(
    results: Sequence[Result],
    growth: Growth,
    capacities: Sequence[Capacity],
    memory: Mapping[str, MemoryLevels | None],
    aftermath: Aftermath,
) -> list[str]:
    """Return a sentence for each rule that does not hold; `memory` is by the name of the process."""
    return [
        *_lost_requests(results),
        *_counters(results, growth),
        *_memory(memory),
        *_blocks(capacities),
        *_aftermath(aftermath),
    ]


def _lost_requests(results: Sequence[Result]) -> Iterator[str]:
    if not any(result.outcome is Outcome.ANSWERED for result in results):
        yield f"None of {len(results)} requests was answered."
    lost = [result for result in results if result.outcome is Outcome.LOST]
    for result in lost[:MOST_SENTENCES]:
        yield f"Request {result.number} was lost ({result.kind}): {result.reason}."
    if len(lost) > MOST_SENTENCES:
        yield f"{len(lost) - MOST_SENTENCES} more requests were lost."


def _counters(results: Sequence[Result], growth: Growth) -> Iterator[str]:
    """Compare counters with clients; one that left before a first token does not know what became of its request."""
    answered = [result for result in results if result.outcome is Outcome.ANSWERED]
    left = [result for result in results if result.outcome is Outcome.LEFT]
    unknown = sum(not result.was_accepted for result in left)
    ends = {reason: growth("pagefleet_request_success_total", finished_reason=reason) for reason in REASONS}
    for name, counted, least, most in (
        (
            "accepted requests that ended",
            sum(ends.values()),
            len(answered) + len(left) - unknown,
            len(answered) + len(left),
        ),
        ("finished requests", ends["stop"] + ends["length"], len(answered), len(answered) + len(left)),
        ("aborted requests", ends["abort"], 0, len(left)),
        ("failed requests", ends["error"], 0, 0),
        *_error_counts(results, growth, unknown),
    ):
        if not least <= counted <= most:
            seen = f"{least}" if least == most else f"{least} to {most}"
            yield f"The server counts {counted:g} {name}, the clients saw {seen}."
    for name, key, tokens in (
        ("prompt", "pagefleet_prompt_tokens_total", sum(result.prompt_tokens for result in answered)),
        ("output", "pagefleet_generation_tokens_total", sum(result.completion_tokens for result in answered)),
    ):
        if growth(key) < tokens:
            yield f"The server counts {growth(key):g} {name} tokens, the clients got {tokens}."


def _error_counts(results: Sequence[Result], growth: Growth, unknown: int) -> Iterator[tuple[str, float, int, int]]:
    statuses = Counter(result.status for result in results if result.outcome in (Outcome.REFUSED, Outcome.BUSY))
    for status in (400, 404, 413, 500):
        counted = growth("pagefleet_request_errors_total", code=str(status))
        yield f"answers with {status}", counted, statuses[status], statuses[status]
    busy = statuses[503]
    yield "answers with 503", growth("pagefleet_request_errors_total", code="503"), busy, busy + unknown


def _memory(memory: Mapping[str, MemoryLevels | None]) -> Iterator[str]:
    for process, levels in memory.items():
        if levels is None:
            yield f"The {process} process gave fewer than {LEAST_SAMPLES} samples of its memory after the warm-up."
        elif not levels.is_flat:
            yield (
                f"The {process} process grew by {levels.growth:.1%}, from {levels.first_bytes / MIB:.1f} to "
                f"{levels.last_bytes / MIB:.1f} MiB ({levels.mib_per_hour:+.1f} MiB/hour); "
                f"{MOST_GROWTH:.0%} is allowed."
            )


def _blocks(capacities: Sequence[Capacity]) -> Iterator[str]:
    for capacity in capacities:
        parts = [capacity[name] or 0 for name in ("blocks_active", "blocks_cached", "blocks_free")]
        if sum(parts) != capacity["blocks_total"]:
            yield (
                f"The KV blocks did not add up: {parts[0]:g} active, {parts[1]:g} cached and {parts[2]:g} free of "
                f"{capacity['blocks_total']}."
            )
            return


def _aftermath(aftermath: Aftermath) -> Iterator[str]:
    for name in ("in_flight", "running", "queue_depth", "blocks_active"):
        if aftermath.capacity[name] != 0:
            yield f"When all clients had gone, {name} was {aftermath.capacity[name]}, not 0."
    if not aftermath.still_answers:
        yield "The server did not answer a request after the soak."
    if aftermath.exit_code not in (None, 0):
        yield f"The server ended with {aftermath.exit_code} on SIGTERM, not with 0."
