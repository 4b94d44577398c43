"""Turn readings into demand: totals that survive restarts and losses, rates, lengths and growth. Pure."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from pagefleet.autoscaler.settings import Settings
from pagefleet.autoscaler.snapshot import Reading, ReplicaPhase, Snapshot
from pagefleet.autoscaler.speed import learn_speed
from pagefleet.autoscaler.state import Rates, State, Totals

SHORT_S = 30.0
MIDDLE_S = 60.0
LONG_S = 120.0
LEAST_GROWTHS = 10
MOST_LEAD_TIME_S = 3600.0
"""Longer than any start that succeeds: what took longer was no start."""
OUTPUT_WEIGHT = 0.005
"""Weight of one finished request in the mean length of answers."""

_TIME = itemgetter(0)
_Entry = TypeVar("_Entry", bound=tuple[Any, ...])


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the service is asked for."""

    rate_short: float
    """Requests per second over 30 s."""
    rate_long: float
    """Requests per second over 120 s."""
    growth: float
    """Factor to expect within a lead time."""
    lead_time_s: float
    queued: int
    """Requests not yet admitted, those of silent replicas estimated."""
    missed_share: float
    """Of first tokens that were late, or of answers that were slow, whichever is more, over 30 s; 0 of too few."""
    missed_share_long: float
    """The same over 120 s."""
    preemptions: float
    """Since the last decision."""
    arrived: float
    """Requests since the last decision."""

    @property
    def forecast(self) -> float:
        """Return the rate to be ready for when a replica created now serves."""
        base = max(self.rate_long, min(self.rate_short, 1.5 * self.rate_long))
        return max(self.rate_short, base * self.growth)


def observe(snapshot: Snapshot, state: State, settings: Settings, *, is_baseline: bool = False) -> tuple[Demand, State]:
    """Take a snapshot's readings into the state and return the demand that it shows.

    With `is_baseline` counters are only noted, since nobody knows over which time they rose.
    """
    state = _learn_lead_time(snapshot, state)
    state = _count(snapshot, state, settings, is_baseline=is_baseline)
    lead_time_s = _lead_time(state, settings)
    rates = Rates(
        snapshot.time_s,
        *(
            _difference(state.totals, "arrivals", window_s, per_second=True)
            * _unseen_factor(snapshot, window_s, settings)
            for window_s in (SHORT_S, MIDDLE_S, LONG_S)
        ),
    )
    state = _learn_growth(state, rates, settings, lead_time_s)
    state = state.changed(hit_share=_hit_share(state))
    demand = Demand(
        rate_short=rates.short,
        rate_long=rates.long,
        growth=_growth(state, settings),
        lead_time_s=lead_time_s,
        queued=_queued(snapshot, settings),
        missed_share=missed_share(state.totals, SHORT_S, settings.least_samples) or 0.0,
        missed_share_long=missed_share(state.totals, LONG_S, settings.least_samples) or 0.0,
        preemptions=_difference(state.totals, "preemptions", 0.0),
        arrived=_difference(state.totals, "arrivals", 0.0),
    )
    return demand, state


# ---- counters ----


def _count(snapshot: Snapshot, state: State, settings: Settings, *, is_baseline: bool) -> State:
    """Add what each replica did since its last reading.

    A counter that fell began again with its engine. What an engine did before the first decision, perhaps for days, is
    no demand of now, even where its first report comes late.
    """
    last = state.totals[-1] if state.totals else Totals(snapshot.time_s)
    if state.totals and snapshot.time_s <= last.time_s:  # asked twice at one moment
        return state
    began_s = snapshot.time_s if state.began_s is None else state.began_s
    sums = dict.fromkeys(Totals._fields[1:], 0.0)
    kept = _since(state.totals, snapshot.time_s - LONG_S - 30)
    readings, reports = {}, []
    for replica in snapshot.replicas:
        now, before = replica.reading, state.readings.get(replica.name)
        if now is None:
            if before is not None:
                readings[replica.name] = before
            continue
        readings[replica.name] = now
        if is_baseline or (before is not None and now.read_s == before.read_s):
            continue
        if before is None and (replica.ready_s is None or replica.ready_s < began_s):
            continue
        if before is None or now.steps_total < before.steps_total or now.arrivals_total < before.arrivals_total:
            before = _ZERO
        rises = {name: max(0, getattr(now, f"{name}_total") - getattr(before, f"{name}_total")) for name in sums}
        rises["admitted"] = now.admitted_total - before.admitted_total  # a preempted sequence waits again
        for name, rise in rises.items():
            sums[name] += rise
        if before is not _ZERO and now.read_s - before.read_s > settings.stale_after_s:
            kept = _filled_in(kept, rises, before.read_s, now.read_s)
        reports.append((before, now))
    totals = Totals(snapshot.time_s, **{name: getattr(last, name) + sums[name] for name in sums})
    state = state.changed(
        began_s=began_s,
        readings=readings,
        totals=(*kept, totals),
        prompt_tokens=_prompt_mean(state, (*kept, totals)),
        output_tokens=_output_mean(state, sums["finished_output_tokens"], sums["finished"]),
    )
    return learn_speed(reports, state, settings, snapshot.time_s)


def _filled_in(
    totals: tuple[Totals, ...], rises: Mapping[str, float], silent_s: float, back_s: float
) -> tuple[Totals, ...]:
    """Spread what a replica did while it was silent over that time: as a surge of one moment it would be no rate."""

    def share(entry: Totals) -> float:
        return min(max((entry.time_s - silent_s) / (back_s - silent_s), 0.0), 1.0)

    return tuple(
        Totals(entry.time_s, *(getattr(entry, name) + share(entry) * rise for name, rise in rises.items()))
        for entry in totals
    )


def _unseen_factor(snapshot: Snapshot, window_s: float, settings: Settings) -> float:
    """Return by how much a rate that was counted is too small, where silent replicas get as much as the others."""
    unseen = 0.0
    for replica in snapshot.ready:
        since_s = replica.ready_s if replica.reading is None else replica.reading.read_s
        age_s = 0.0 if since_s is None else snapshot.time_s - since_s
        if age_s > settings.stale_after_s:
            unseen += min(1.0, age_s / window_s)
    ready = len(snapshot.ready)
    return ready / (ready - unseen) if unseen < ready else 1.0


def _prompt_mean(state: State, totals: tuple[Totals, ...]) -> float | None:
    admitted = _difference(totals, "admitted", LONG_S)
    tokens = _difference(totals, "prompt_tokens", LONG_S)
    return tokens / admitted if admitted >= 1 and tokens > 0 else state.prompt_tokens


def _output_mean(state: State, tokens: float, finished: float) -> float | None:
    if finished < 1:
        return state.output_tokens
    mean, before = tokens / finished, state.output_tokens
    if before is None:
        return mean
    kept: float = (1 - OUTPUT_WEIGHT) ** finished
    return before * kept + mean * (1 - kept)


def _hit_share(state: State) -> float:
    prompt = _difference(state.totals, "prompt_tokens", LONG_S)
    hits = _difference(state.totals, "prefix_hit_tokens", LONG_S)
    return min(0.95, hits / prompt) if prompt else state.hit_share


def _difference(totals: tuple[Totals, ...], name: str, seconds: float, *, per_second: bool = False) -> float:
    """Return how much a total rose in the last seconds; with 0 seconds, since the last decision."""
    if len(totals) < 2:
        return 0.0
    last = totals[-1]
    first = totals[min(bisect_left(totals, last.time_s - seconds - 1e-6, key=_TIME), len(totals) - 2)]
    rise: float = getattr(last, name) - getattr(first, name)
    return rise / (last.time_s - first.time_s) if per_second else rise


def missed_share(totals: tuple[Totals, ...], seconds: float, least_samples: int) -> float | None:
    """Return the share of first tokens or answers that missed their objective, whichever is more; None of too few."""
    shares = []
    for missed, of_all in (("late_first_tokens", "first_tokens"), ("slow_answers", "finished")):
        samples = _difference(totals, of_all, seconds)
        if samples >= least_samples:
            shares.append(_difference(totals, missed, seconds) / samples)
    return max(shares, default=None)


def _queued(snapshot: Snapshot, settings: Settings) -> int:
    """Return the requests that wait; a silent replica is taken for as loaded as its most loaded peers."""
    depths = sorted(reading.queue_depth for reading in snapshot.fresh_readings(settings.stale_after_s))
    imputed = depths[(3 * len(depths)) // 4] if depths else 0
    total = snapshot.held_requests
    for replica in snapshot.replicas:
        if replica.phase is ReplicaPhase.PENDING:
            continue
        if replica.reading is not None and snapshot.time_s - replica.reading.read_s <= settings.stale_after_s:
            total += replica.reading.queue_depth
        else:
            total += max(imputed, replica.reading.queue_depth if replica.reading is not None else 0)
    return total


# ---- lead time and growth ----


def _learn_lead_time(snapshot: Snapshot, state: State) -> State:
    ready = {replica.name: replica for replica in snapshot.ready}
    taken = [
        replica.ready_s - replica.created_s
        for name, replica in ready.items()
        if name not in state.ready_names
        and name not in state.readings  # one that had served and was ready again tells nothing of starts
        and replica.ready_s is not None
        and 0 < replica.ready_s - replica.created_s <= MOST_LEAD_TIME_S
    ]
    now_s = snapshot.time_s
    since_s = {  # on this clock; only what was there before the first decision is told by the other
        replica.name: state.pending_since_s.get(replica.name, now_s if state.totals else min(replica.created_s, now_s))
        for replica in snapshot.pending
    }
    return state.changed(
        ready_names=frozenset(ready),
        lead_times_s=(*state.lead_times_s, *taken)[-50:],
        pending_since_s=since_s,
    )


def _lead_time(state: State, settings: Settings) -> float:
    """Return the 90th percentile of the observed times, or the plan's until three were seen."""
    if len(state.lead_times_s) < 3:
        return settings.lead_time_s
    ordered = sorted(state.lead_times_s)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def _learn_growth(state: State, rates: Rates, settings: Settings, lead_time_s: float) -> State:
    """Note by how much the rate of a lead time ago has been exceeded since, for as long as queues take to notice."""
    window = (*_since(state.rates, rates.time_s - lead_time_s - 10), rates)
    growths = _since(state.growths, rates.time_s - settings.growth_memory_s)
    is_whole = state.began_s is not None and window[0].time_s >= state.began_s + LONG_S
    if is_whole and window[0].time_s <= rates.time_s - lead_time_s and window[0].long > 0:
        growths = (*growths, (rates.time_s, max(entry.middle for entry in window) / window[0].long))
    return state.changed(rates=window, growths=growths)


def _since(entries: tuple[_Entry, ...], time_s: float) -> tuple[_Entry, ...]:
    """Return what is not older than a time; entries begin with theirs, and are in order."""
    return entries[bisect_left(entries, time_s, key=_TIME) :]


def _growth(state: State, settings: Settings) -> float:
    if len(state.growths) < LEAST_GROWTHS:
        return settings.first_growth
    ordered = sorted(map(itemgetter(1), state.growths))
    quantile: float = ordered[min(len(ordered) - 1, int(settings.growth_quantile * len(ordered)))]
    return min(max(1.0, quantile), settings.most_growth)


_ZERO = Reading(
    read_s=0.0,
    blocks_active=0,
    blocks_total=0,
    queue_depth=0,
    tokens_queued=0,
    queue_age_s=0.0,
    running=0,
    in_flight=0,
    arrivals_total=0,
    finished_total=0,
    prompt_tokens_total=0,
    prefix_hit_tokens_total=0,
    finished_output_tokens_total=0,
    preemptions_total=0,
    first_tokens_total=0,
    late_first_tokens_total=0,
    slow_answers_total=0,
    steps_total=0,
    step_seconds_total=0.0,
    computed_tokens_total=0,
    kv_tokens_read_total=0,
    sequence_steps_total=0,
)
