"""`pagefleet bench block-size`: throughput and waste by the number of tokens in a block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagefleet.engine.bench.contest import Entry, run_rounds
from pagefleet.engine.bench.machine_rates import cpu_name
from pagefleet.engine.bench.our_engine import OurEngine
from pagefleet.engine.bench.plot import Line, Panel, write_plot
from pagefleet.engine.bench.setup import fitted, model_folder, workload_of
from pagefleet.engine.bench.tables import check_writable, text_table, write_json
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.messages import CoreState

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class BlockSizeOptions:
    """Say what to measure."""

    engine: EngineConfig
    """Its block size is the first of `block_sizes` in turn."""
    block_sizes: Sequence[int] = (16, 32, 64, 128)
    preset: str = "S"
    requests: int = 64
    rounds: int = 2
    json_path: Path | None = None
    plot_path: Path | None = None


class _SlotCounter:
    """Sum filled and held slots over steps."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.filled = self.held = 0

    def look(self, state: CoreState) -> None:
        self.filled += state.tokens_active
        self.held += state.blocks_active * self._block_size

    @property
    def waste(self) -> float:
        return 1 - self.filled / self.held if self.held else 0.0


def run_block_sizes(options: BlockSizeOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError or RequestRefused with the sentence for the user."""
    check_writable("--json", options.json_path)
    check_writable("--plot", options.plot_path)
    folder = model_folder(options.engine.model, options.preset)
    requests = workload_of(folder, options.requests)
    config = fitted(options.engine, folder, requests)
    sizes = sorted(set(options.block_sizes))
    counters = [_SlotCounter(size) for size in sizes]
    engines = [
        OurEngine(msgspec.structs.replace(config, block_size=size), name=str(size), on_step=counter.look)
        for size, counter in zip(sizes, counters, strict=True)
    ]
    entries = [Entry(engine, requests, f"all {len(requests)}") for engine in engines]
    run_rounds(entries, options.rounds)
    rows = [
        {
            "block_size": size,
            "waste": round(counter.waste, 5),
            "attention_backend": engine.core.info.attention_backend,
            **entry.summary(),
        }
        for size, counter, engine, entry in zip(sizes, counters, engines, entries, strict=True)
    ]
    report: dict[str, object] = {
        "cpu": cpu_name(),
        "model": options.engine.model or f"preset {options.preset}",
        "block_sizes": rows,
    }
    header = ("block size", "tok/s", "tok/CPU s", "empty share", "attention")
    say(f"{report['cpu']}, {report['model']}: {len(requests)} requests, {options.rounds} turns of each size")
    table = [
        (size, entry.tokens_per_s, entry.tokens_per_cpu_s, f"{counter.waste:.1%}", engine.core.info.attention_backend)
        for size, counter, engine, entry in zip(sizes, counters, engines, entries, strict=True)
    ]
    say(text_table(header, table))
    write_json(report, options.json_path)
    rates = [entry.tokens_per_cpu_s for entry in entries]
    shares = [100 * counter.waste for counter in counters]
    panels = [
        Panel(
            x_label="tokens in a block",
            y_label="output tokens per CPU second",
            lines=[Line("throughput", sizes, rates)],
            has_points=True,
        ),
        Panel(
            x_label="tokens in a block",
            y_label="empty slots, %",
            lines=[Line("waste", sizes, shares)],
            has_points=True,
        ),
    ]
    write_plot(options.plot_path, panels, title=f"Block sizes, {report['model']}", say=say)
    return report
