"""`pagefleet bench waste`: the KV slots that our blocks hold, beside what a cache without pages would reserve."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from pagefleet.engine.bench.our_engine import OurEngine
from pagefleet.engine.bench.plot import Line, Panel, write_plot
from pagefleet.engine.bench.setup import context_length_of, fitted, model_folder, workload_of
from pagefleet.engine.bench.slots import SlotSample, waste_of
from pagefleet.engine.bench.tables import check_writable, text_table, write_json
from pagefleet.engine.bench.workload import BenchRequest
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.messages import CoreState
from pagefleet.engine.startup import block_size_of

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class WasteOptions:
    """Say what to measure."""

    engine: EngineConfig
    preset: str = "S"
    requests: int = 64
    json_path: Path | None = None
    plot_path: Path | None = None


def run_waste(options: WasteOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError or RequestRefused with the sentence for the user."""
    check_writable("--json", options.json_path)
    check_writable("--plot", options.plot_path)
    folder = model_folder(options.engine.model, options.preset)
    requests = workload_of(folder, options.requests)
    context_length = context_length_of(folder)
    samples = sample_slots(fitted(options.engine, folder, requests), requests, context_length=context_length)
    waste = waste_of(samples)
    peak = max(samples, key=lambda sample: sample.held)
    report: dict[str, object] = {
        "model": options.engine.model or f"preset {options.preset}",
        "requests": len(requests),
        "block_size": block_size_of(options.engine),
        "context_length": context_length,
        "steps": len(samples),
        "waste": {"paged": waste.paged, "oracle": waste.oracle, "context": waste.context},
        "peak_slots": {"paged": peak.held, "oracle": peak.reserved_oracle, "context": peak.reserved_context},
        "samples": [
            [round(each.elapsed_s, 4), each.filled, each.held, each.reserved_oracle, each.reserved_context]
            for each in samples
        ],
        "samples_columns": ["elapsed_s", "filled", "held", "reserved_oracle", "reserved_context"],
    }
    say(f"{report['model']}: {len(requests)} requests, {len(samples)} steps, context {context_length} tokens")
    say(
        text_table(
            ("cache", "empty share", "slots at the peak"),
            [
                (f"blocks of {block_size_of(options.engine)}", f"{waste.paged:.1%}", peak.held),
                ("final length known before", f"{waste.oracle:.1%}", peak.reserved_oracle),
                ("context length", f"{waste.context:.1%}", peak.reserved_context),
            ],
        )
    )
    write_json(report, options.json_path)
    write_plot(options.plot_path, [_panel(samples)], title=f"KV slots, {report['model']}", say=say)
    return report


def sample_slots(config: EngineConfig, requests: Sequence[BenchRequest], *, context_length: int) -> list[SlotSample]:
    """Run the requests once and return a sample after each step; what a step has finished is in none of its counts."""
    samples: list[SlotSample] = []
    engine = OurEngine(config)
    block_size, started_s = engine.core.info.block_size, time.perf_counter()

    def look(state: CoreState) -> None:
        holders = engine.core.scheduler.blocks.holders()
        running = [each for each in engine.core.scheduler.sequences() if each.sequence_id in holders]
        samples.append(
            SlotSample(
                elapsed_s=time.perf_counter() - started_s,
                filled=state.tokens_active,
                held=state.blocks_active * block_size,
                reserved_context=len(running) * context_length,
                reserved_oracle=sum(requests[int(each.request_id)].total_tokens for each in running),
            )
        )

    engine.on_step = look
    with tqdm(total=sum(request.output_tokens for request in requests), unit="tok", disable=None) as bar:
        engine.run(requests, bar.update)
    return samples


def _panel(samples: Sequence[SlotSample]) -> Panel:
    seconds = [sample.elapsed_s for sample in samples]
    return Panel(
        x_label="seconds",
        y_label="KV slots",
        lines=[
            Line("reserved for the context length", seconds, [sample.reserved_context for sample in samples]),
            Line("reserved for the final length", seconds, [sample.reserved_oracle for sample in samples]),
            Line("held in blocks", seconds, [sample.held for sample in samples]),
            Line("filled with tokens", seconds, [sample.filled for sample in samples], is_filled=True),
        ],
    )
