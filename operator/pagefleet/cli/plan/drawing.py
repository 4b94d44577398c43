"""Draw a plan for people: a memory bar, a table, and sentences. Colours on a terminal, plain text in a pipe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagefleet.capacity import Alternative, CannotPlan, CapacityPlan, DoesNotFit, Objective, ObjectiveOutOfReach
from pagefleet.capacity.text import bytes_text, count_text, time_text

BAR_WIDTH = 60
PIPE_WIDTH = 120


@dataclass(frozen=True)
class Part:
    """Hold one use of memory, and how it is drawn."""

    label: str
    size_bytes: int
    sign: str
    style: str


def make_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or 120 columns in a pipe."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def memory_parts(plan: CapacityPlan) -> list[Part]:
    """Return the uses of one accelerator's memory, which sum to all of it."""
    used = plan.footprint
    idle = used.usable_bytes - plan.predicted_bytes
    return [
        Part("weights", used.weights_bytes, "#", "blue"),
        Part("activations", used.activation_bytes, "+", "yellow"),
        Part("runtime", used.runtime_bytes, "r", "magenta"),
        Part("KV cache", plan.kv_cache_bytes + used.kv_reserve_bytes, "=", "green"),
        Part("not needed", idle, ".", "dim"),
        Part("left to others", used.memory_bytes - used.usable_bytes, " ", "dim"),
    ]


def draw_bar(parts: list[Part], width: int = BAR_WIDTH) -> Text:
    """Return a bar of `width` signs, as many for each part as its share, and at least one for what is there."""
    total = sum(part.size_bytes for part in parts)
    bar, drawn, reached = Text("["), 0, 0
    for part in parts:
        reached += part.size_bytes
        end = max(round(reached / total * width), drawn + (part.size_bytes > 0))
        bar.append(part.sign * min(end - drawn, width - drawn), style=part.style)
        drawn = min(end, width)
    return bar.append("]")


def draw_plan(plan: CapacityPlan, title: str) -> RenderableType:
    """Return everything that there is to say of a plan."""
    parts = memory_parts(plan)
    drawn: tuple[RenderableType, ...] = (
        draw_bar(parts),
        _memory_table(parts),
        *_numbers(plan),
        _choices(plan),
        *_rest(plan),
    )
    return Group(*_head(plan, title), *drawn)


def _head(plan: CapacityPlan, title: str) -> Iterator[Text]:
    count = plan.knobs.tensor_parallel_size
    where = plan.accelerator if count == 1 else f"{count} x {plan.accelerator}, each"
    aim = "" if plan.objective is Objective.THROUGHPUT else f", for {plan.objective}"
    yield Text(f"{title} on {where} with {bytes_text(plan.footprint.memory_bytes)}{aim}", style="bold")
    if plan.unavailable:
        yield Text(f"Not available in this engine yet: {', '.join(plan.unavailable)}.", style="red")


def _memory_table(parts: list[Part]) -> Table:
    table = Table.grid(padding=(0, 2))
    for part in parts:
        if part.size_bytes > 0:
            table.add_row(Text(f"  {part.sign}", style=part.style), part.label, Text(bytes_text(part.size_bytes)))
    return table


def _numbers(plan: CapacityPlan) -> Iterator[Text]:
    service = plan.service
    yield Text(
        f"Cache: {plan.blocks:,} blocks of {plan.knobs.block_size} tokens, {plan.kv_tokens:,} tokens of "
        f"{count_text(plan.kv_bytes_per_token)} bytes: {count_text(plan.full_length_sequences)} times the longest "
        f"length of {plan.max_model_len:,}."
    )
    yield Text(f"Limit: {plan.limit}.")
    if plan.step is None or service.requests_per_s is None:
        yield Text("Speed: not known for this accelerator; give --bandwidth and --tflops to have it predicted.")
        return
    step = plan.step
    yield Text(
        f"Step: {time_text(step.base_s)} + {time_text(step.prefill_token_s)} for each prompt token + "
        f"{time_text(step.sequence_s)} for each sequence + {time_text(step.kv_token_s * 1000)} for 1,000 cached tokens "
        f"({'measured' if step.source == 'measured' else f'{step.source}: predicted, not measured'})."
    )
    yield Text(
        f"Service: {service.requests_per_s:.3g} requests/s, {count_text(service.output_tokens_per_s or 0)} output "
        f"tokens/s at {count_text(service.concurrency)} sequences; {time_text(service.itl_s or 0)} between tokens, "
        f"{time_text(service.ttft_s or 0)} to the first; prompts take {service.prefill_share or 0:.0%} of the time."
    )
    if plan.replicas is not None:
        yield Text(f"Replicas: {plan.replicas}, each at no more than 85 % of its service rate.")


def _choices(plan: CapacityPlan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Knob", no_wrap=True)
    table.add_column("Value", no_wrap=True)
    table.add_column("Why", overflow="fold")
    for choice in plan.choices:
        table.add_row(f"--{choice.knob}", choice.value, Text(choice.sentence))
    return table


def _rest(plan: CapacityPlan) -> Iterator[Text]:
    if len(plan.formats) > 1:
        yield Text("What may be chosen:", style="bold")
        yield from (Text(f"  {each.sentence}") for each in plan.formats)
    yield from _alternatives("Rejected:", plan.rejected)
    yield from _alternatives("What would change the answer:", plan.near_misses)


def _alternatives(heading: str, alternatives: tuple[Alternative, ...]) -> Iterator[Text]:
    if alternatives:
        yield Text(heading, style="bold")
    for each in alternatives:
        yield Text(f"  {each.change}: {each.effect} ({each.obstacle})")


def draw_comparison(
    title: str, rows: Sequence[tuple[str, CapacityPlan | CannotPlan]], prices: dict[str, float]
) -> RenderableType:
    """Return one row for each accelerator, refusals as their first sentence."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for heading in ("Accelerator", "KV tokens", "Sequences", "Requests/s", "Output tokens/s", "$/1M output tokens"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "Accelerator" else "right")
    table.add_column("Limit", overflow="fold")
    for name, outcome in rows:
        if isinstance(outcome, CapacityPlan):
            table.add_row(name, *_row(outcome, prices.get(name)), outcome.service.binding_limit)
        else:
            table.add_row(name, *("–",) * 5, Text(_short(outcome)))
    return table


def _row(plan: CapacityPlan, price: float | None) -> tuple[str, ...]:
    service = plan.service
    cost = None if price is None else plan.cost_per_million_output_tokens(price)
    return (
        f"{plan.kv_tokens:,}",
        count_text(service.concurrency),
        "–" if service.requests_per_s is None else f"{service.requests_per_s:.3g}",
        "–" if service.output_tokens_per_s is None else count_text(service.output_tokens_per_s),
        "–" if cost is None else f"{cost:.2f}",
    )


def _short(error: CannotPlan) -> str:
    if isinstance(error, DoesNotFit):
        return f"does not fit: needs {bytes_text(error.needed_bytes)} of {bytes_text(error.usable_bytes)}"
    if isinstance(error, ObjectiveOutOfReach):
        return f"{error.objective}: one request alone takes {time_text(error.least_s)}"
    return str(error)
