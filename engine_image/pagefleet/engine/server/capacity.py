"""Write the `/capacity` message from what the API process counts and what the core's latest state says.

The two meet here without a lock: the core's numbers came with its last step, ours are of this moment. What came in
since then, and what the core has not looked at because it is in a long step, counts as queued.
"""

import time

import msgspec

from pagefleet.api.capacity import CapacityReport, MemoryReport
from pagefleet.engine import messages
from pagefleet.engine.server.state import ServerState

Values = dict[str, object]


class CapacityReporter:
    """Write reports; remembers what it has said, because a counter never falls."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._requests_total = 0

    def report(self) -> CapacityReport:
        """Return the message; what is not known is null."""
        state, client = self._state, self._state.client
        phase, progress, detail = state.phase()
        now_s = time.monotonic()
        values: Values = {
            "phase": phase,
            "progress": progress,
            "detail": detail,
            "model": state.model_name,
            "draining": state.is_draining,
            "in_flight": state.requests_in_flight,
            "startup_stage_seconds": dict(state.metrics.startup_stage_seconds),
            "config_hash": state.engine.config_hash,
            "engine_version": state.version,
            "pod_uid": state.pod.pod_uid,
            "monotonic_s": now_s,
        }
        if client.ready is not None:
            values |= _limits(client.ready)
        if client.state is not None:
            values |= _core_values(client.state) | self._queue(client.state, now_s) | self._answers()
        return CapacityReport.model_validate(values)

    def _queue(self, core: messages.CoreState, now_s: float) -> Values:
        """Return the core's queue and what is on its way there."""
        unseen, preparing = self._state.client.unseen.values(), self._state.preparing
        arrived_s = [one.arrival_s for one in unseen]
        if preparing.oldest_s is not None:
            arrived_s.append(preparing.oldest_s)
        if core.queue_age_s is not None:
            arrived_s.append(core.monotonic_s - core.queue_age_s)
        return {
            "queue_depth": core.queue_depth + len(unseen) + len(preparing),
            "tokens_queued": core.tokens_queued + sum(one.prompt_tokens for one in unseen),
            "queue_age_s": max(0.0, now_s - min(arrived_s)) if arrived_s else 0.0,
        }

    def _answers(self) -> Values:
        """Return what clients could see."""
        metrics = self._state.metrics
        # One that is refused, or gives up before it is taken, was counted: it makes room for the next that is taken.
        arrived = metrics.choices_total + self._state.client.choices_submitting + len(self._state.preparing)
        self._requests_total = max(self._requests_total, arrived)
        return {
            "requests_total": self._requests_total,
            "finished_total": metrics.finished_total,
            "finished_output_tokens_total": metrics.finished_tokens_total,
            "generation_tokens_total": metrics.generation_tokens_total,
            "ttft": metrics.latencies("time_to_first_token_seconds"),
            "time_per_output_token": metrics.latencies("request_time_per_output_token_seconds"),
            "step_time_s": metrics.mean_step_time_s,
        }


def _limits(ready: messages.CoreReady) -> Values:
    return {
        "blocks_total": ready.blocks_total,
        "block_size": ready.block_size,
        "max_model_len": ready.max_model_len,
        "max_num_seqs": ready.max_num_seqs,
        "max_num_batched_tokens": ready.max_num_batched_tokens,
        "memory_bytes": ready.memory_limit_bytes,
        "weights_bytes": ready.weight_bytes,
        "kv_cache_bytes": ready.kv_cache_bytes,
        "memory": _memory_report(ready.memory),
        "config_hash": ready.config_hash,
    }


def _core_values(core: messages.CoreState) -> Values:
    names = (
        *("blocks_total", "blocks_active", "blocks_cached", "blocks_free", "tokens_active", "running"),
        *("preemptions_total", "prompt_tokens_total", "prefix_query_tokens_total", "prefix_hit_tokens_total"),
        *("steps_total", "step_seconds_total", "computed_tokens_total", "kv_tokens_read_total"),
        "sequence_steps_total",
    )
    return {name: getattr(core, name) for name in names}


def _memory_report(memory: messages.MemoryReport | None) -> MemoryReport | None:
    if memory is None:
        return None
    return MemoryReport.model_validate({**msgspec.to_builtins(memory), "drift_ratio": memory.drift_ratio})
