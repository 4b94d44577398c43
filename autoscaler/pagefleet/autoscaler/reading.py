"""Turn an engine's `/capacity` message into a reading; what is unknown makes no reading. Pure."""

from pagefleet.api.capacity import CapacityReport, LatencyHistogram
from pagefleet.autoscaler.snapshot import Reading
from pagefleet.autoscaler.trust import MOST_COUNT


class UnusableReport(ValueError):
    """A report that cannot be decided from; the message says which value is wrong."""


def read_report(
    report: CapacityReport, *, read_s: float, ttft_slo_s: float | None, itl_slo_s: float | None
) -> Reading | None:
    """Return the reading of a report made at `read_s`, on the snapshots' clock; None while the engine starts.

    Raises:
        UnusableReport: A running engine left out a value, or one contradicts another.
    """
    if report.blocks_total is None or report.queue_depth is None or report.requests_total is None:
        return None
    reading = Reading(
        read_s=read_s,
        blocks_active=_known(report.blocks_active, "blocks_active"),
        blocks_total=report.blocks_total,
        queue_depth=report.queue_depth,
        tokens_queued=_known(report.tokens_queued, "tokens_queued"),
        queue_age_s=report.queue_age_s or 0.0,
        running=_known(report.running, "running"),
        in_flight=_known(report.in_flight, "in_flight"),
        arrivals_total=report.requests_total,
        finished_total=_known(report.finished_total, "finished_total"),
        prompt_tokens_total=_known(report.prompt_tokens_total, "prompt_tokens_total"),
        prefix_hit_tokens_total=report.prefix_hit_tokens_total or 0,
        finished_output_tokens_total=_known(report.finished_output_tokens_total, "finished_output_tokens_total"),
        preemptions_total=_known(report.preemptions_total, "preemptions_total"),
        first_tokens_total=_total(report.ttft),
        late_first_tokens_total=_above(report.ttft, ttft_slo_s),
        slow_answers_total=_above(report.time_per_output_token, itl_slo_s),
        steps_total=_known(report.steps_total, "steps_total"),
        step_seconds_total=report.step_seconds_total or 0.0,
        computed_tokens_total=_known(report.computed_tokens_total, "computed_tokens_total"),
        kv_tokens_read_total=_known(report.kv_tokens_read_total, "kv_tokens_read_total"),
        sequence_steps_total=_known(report.sequence_steps_total, "sequence_steps_total"),
    )
    if reading.blocks_active > reading.blocks_total:
        raise UnusableReport(f"blocks_active is {reading.blocks_active} of {reading.blocks_total} blocks")
    return reading


def _known(value: int | None, name: str) -> int:
    if value is None:
        raise UnusableReport(f"{name} is null on an engine that runs")
    if value > MOST_COUNT:
        raise UnusableReport(f"{name} is {value}, which no counter reaches")
    return value


def _total(histogram: LatencyHistogram | None) -> int:
    return 0 if histogram is None else histogram.total


def _above(histogram: LatencyHistogram | None, limit_s: float | None) -> int:
    return 0 if histogram is None or limit_s is None else round(histogram.above(limit_s))
