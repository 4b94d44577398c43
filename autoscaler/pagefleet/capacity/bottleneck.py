"""Say what a measured engine spends its time on, and which knob would gain how much. Pure: numbers in, words out.

A decode step of B sequences takes `base + B x (sequence + context x kv_token)`. Of `base` the stream of weights, and of
`kv_token` that of the cache, is memory; of `sequence`, what the machine needs for a token's products is compute. The
rest is overhead: Python, norms, attention's own arithmetic, waits between kernels.
"""

from dataclasses import dataclass, replace

from pagefleet.capacity.step_time import StepTime
from pagefleet.capacity.text import count_text, time_text

LEAST_GAIN = 0.01
"""Less is not worth a sentence."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLoad:
    """Describe the load that is judged and the machine; what is None is not known."""

    step: StepTime
    sequences: int
    """Sequences in a step now."""
    most_sequences: int
    """Sequences of this length for which there is memory."""
    prompt_tokens: float
    output_tokens: float
    weight_bytes: float | None = None
    """What a step reads of weights."""
    kv_bytes_per_token: float | None = None
    flop_per_token: float | None = None
    gemm_flop_per_s: float | None = None
    stream_bytes_per_s: float | None = None
    int8_weight_bytes: float | None = None
    """The same with int8 weights; None where they are in use, or nobody knows."""
    int8_kv_share: float | None = None
    """Bytes of an int8 cache over those of the present one; None likewise."""
    missing: tuple[str, ...] = ()
    """Of `int8 weights` and `int8 KV cache`, what this engine does not have yet."""

    @property
    def context(self) -> float:
        """Tokens of a sequence in the cache, averaged over its decoding."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def weights_s(self) -> float | None:
        """What the stream of weights takes of a step."""
        if self.weight_bytes is None or not self.stream_bytes_per_s:
            return None
        return min(self.step.base_s, self.weight_bytes / self.stream_bytes_per_s)

    @property
    def kv_read_s(self) -> float:
        """What reading one cached token takes: at most all that it adds."""
        if self.kv_bytes_per_token is None or not self.stream_bytes_per_s:
            return self.step.kv_token_s
        return min(self.step.kv_token_s, self.kv_bytes_per_token / self.stream_bytes_per_s)

    @property
    def products_s(self) -> float:
        """What the products of one decoded token take: at most all that a sequence adds."""
        if self.flop_per_token is None or not self.gemm_flop_per_s:
            return self.step.sequence_s
        return min(self.step.sequence_s, self.flop_per_token / self.gemm_flop_per_s)

    def request_s(self, step: StepTime, sequences: int) -> float:
        """Return the engine's time that one request takes among so many."""
        each_s = step.base_s / sequences + step.decode_s(self.context)
        return step.prefill_token_s * self.prompt_tokens + self.output_tokens * each_s


@dataclass(frozen=True)
class Gain:
    """Name one change and how many times the requests per second it gives."""

    change: str
    ratio: float
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """Hold what a load spends its time on. Seconds are of one decode step."""

    prefill_share: float
    """Of a request's time in the engine; the rest is decode."""
    step_s: float
    weights_s: float | None
    """None where the machine's bandwidth is not known: then overhead holds it."""
    kv_s: float
    products_s: float
    overhead_s: float
    bound: str
    """`memory`, `compute` or `overhead`, whichever takes most."""
    turning_point: float | None
    """Sequences from which products take longer than memory; None where reading the cache always does."""
    gains: tuple[Gain, ...]
    """The largest first."""


def find_bottleneck(load: MeasuredLoad) -> Bottleneck:
    """Split a decode step of the present load, and rank what would make it serve more."""
    step, sequences = load.step, load.sequences
    weights_s, kv_s = load.weights_s, load.kv_read_s * load.context * sequences
    products_s = load.products_s * sequences
    step_s = step.base_s + sequences * step.decode_s(load.context)
    overhead_s = max(0.0, step_s - (weights_s or 0.0) - kv_s - products_s)
    parts = {"memory": (weights_s or 0.0) + kv_s, "compute": products_s, "overhead": overhead_s}
    kv_each_s = load.kv_read_s * load.context
    fixed_s = step.base_s if weights_s is None else weights_s
    return Bottleneck(
        prefill_share=step.prefill_token_s * load.prompt_tokens / load.request_s(step, sequences),
        step_s=step_s,
        weights_s=weights_s,
        kv_s=kv_s,
        products_s=products_s,
        overhead_s=overhead_s,
        bound=max(parts, key=lambda name: parts[name]),
        turning_point=fixed_s / (load.products_s - kv_each_s) if load.products_s > kv_each_s else None,
        gains=_gains(load),
    )


def _gains(load: MeasuredLoad) -> tuple[Gain, ...]:
    step, now_s = load.step, load.request_s(load.step, load.sequences)

    def ratio(changed: StepTime, sequences: int = load.sequences) -> float:
        return now_s / load.request_s(changed, sequences)

    found = []
    if load.most_sequences > load.sequences:
        more = load.most_sequences
        found.append(Gain(f"{more} sequences per step instead of {load.sequences}", ratio(step, more)))
    if load.weights_s is not None and load.weight_bytes and load.int8_weight_bytes is not None:
        saved_s = load.weights_s * max(0.0, 1 - load.int8_weight_bytes / load.weight_bytes)
        found.append(_format("int8 weights", ratio(replace(step, base_s=step.base_s - saved_s)), load))
    if load.int8_kv_share is not None:
        saved_s = load.kv_read_s * max(0.0, 1 - load.int8_kv_share)
        found.append(_format("int8 KV cache", ratio(replace(step, kv_token_s=step.kv_token_s - saved_s)), load))
    if load.weights_s is not None:
        least = replace(step, base_s=load.weights_s, sequence_s=load.products_s, kv_token_s=load.kv_read_s)
        found.append(Gain("less overhead: Python, attention, waits", ratio(least), "at most"))
    worth = (gain for gain in found if gain.ratio >= 1 + LEAST_GAIN)
    return tuple(sorted(worth, key=lambda gain: -gain.ratio))


def _format(name: str, ratio: float, load: MeasuredLoad) -> Gain:
    return Gain(name, ratio, "not in this engine yet" if name in load.missing else "changes answers a little")


def sentences(load: MeasuredLoad, found: Bottleneck) -> list[str]:
    """Say it in plain words, one sentence a line."""
    shares = [
        f"{name} {seconds / found.step_s:.0%}"
        for name, seconds in (
            ("weights", found.weights_s),
            ("KV cache", found.kv_s),
            ("products", found.products_s),
            ("overhead" if found.weights_s is not None else "weights and overhead", found.overhead_s),
        )
        if seconds is not None
    ]
    return [
        f"A request of {count_text(load.prompt_tokens)} prompt and {count_text(load.output_tokens)} output tokens "
        f"spends {found.prefill_share:.0%} of its time in prefill and {1 - found.prefill_share:.0%} in decode.",
        f"A decode step of {load.sequences} sequences takes {time_text(found.step_s)}: {', '.join(shares)}. "
        f"It is {_bound_words(found)}.",
        _turn_words(load, found),
        *_gain_words(found),
    ]


def _bound_words(found: Bottleneck) -> str:
    if found.bound == "overhead":
        if found.weights_s is None:
            return "bound by what every step costs; the machine's bandwidth is not known, so weights are part of that"
        return "latency-bound: overhead takes more than memory or products"
    return f"{found.bound}-bound"


def _turn_words(load: MeasuredLoad, found: Bottleneck) -> str:
    context = f"{count_text(round(load.context))} tokens of context"
    if found.turning_point is None:
        return f"With {context} it stays memory-bound at any batch: reading the cache takes longer than the products."
    turn = max(1, round(found.turning_point))
    place = "below" if load.sequences < turn else "at or above"
    return f"It turns from memory- to compute-bound at {turn} sequences per step, with {context}: now it is {place}."


def _gain_words(found: Bottleneck) -> list[str]:
    if not found.gains:
        return ["No knob that was looked at gains 1 %."]
    lines = [
        f"  {place}. {gain.change}: {gain.ratio:.2f} x the requests/s{f' ({gain.remark})' if gain.remark else ''}"
        for place, gain in enumerate(found.gains, 1)
    ]
    return ["What helps, the most first:", *lines]
