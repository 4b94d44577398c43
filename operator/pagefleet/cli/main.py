"""The `pagefleet` command: its tree of commands and how each of them ends."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pagefleet.cli import (
    autoscaler_command,
    bench_command,
    bench_gate_command,
    bench_simulator_command,
    crds_command,
    dashboard_command,
    engine_command,
    operator_command,
    plan_command,
    play_command,
    profile_command,
    quantize_command,
    replay_command,
    runbook_command,
    simulate_command,
    top_command,
    validate_command,
)
from pagefleet.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, CommandError

DEBUG_VARIABLE = "PAGEFLEET_DEBUG"

# rich_markup_mode=None: errors are plain lines, whole in a log file and in the last line that `play` shows.
app = typer.Typer(
    name="pagefleet",
    help="Serve language models: one manifest, on this machine or on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
engine_app = typer.Typer(help="The paged-attention engine.", no_args_is_help=True, rich_markup_mode=None)
engine_app.command("serve")(engine_command.serve)
app.add_typer(engine_app, name="engine")
operator_app = typer.Typer(help="The Kubernetes operator.", no_args_is_help=True, rich_markup_mode=None)
operator_app.command("run")(operator_command.run)
app.add_typer(operator_app, name="operator")
autoscaler_app = typer.Typer(help="The Kubernetes autoscaler.", no_args_is_help=True, rich_markup_mode=None)
autoscaler_app.command("run")(autoscaler_command.run)
app.add_typer(autoscaler_app, name="autoscaler")
bench_app = typer.Typer(help="Measure the engine.", no_args_is_help=True, rich_markup_mode=None)
bench_app.command("throughput")(bench_command.throughput)
bench_app.command("waste")(bench_command.waste)
bench_app.command("block-size")(bench_command.block_size)
bench_app.command("prefix")(bench_command.prefix)
bench_app.command("step")(bench_command.step)
bench_app.command("scrape")(bench_command.scrape)
bench_app.command("simulator")(bench_simulator_command.simulator)
bench_app.command("quality")(bench_gate_command.quality)
bench_app.command("serving")(bench_command.serving)
bench_app.command("soak")(bench_gate_command.soak)
app.add_typer(bench_app, name="bench")
dashboard_app = typer.Typer(help="The Grafana dashboards.", no_args_is_help=True, rich_markup_mode=None)
dashboard_app.command("json")(dashboard_command.json)
dashboard_app.command("draw")(dashboard_command.draw)
app.add_typer(dashboard_app, name="dashboard")
app.command("play")(play_command.play)
app.command("plan")(plan_command.plan)
app.command("profile")(profile_command.profile)
app.command("quantize")(quantize_command.quantize)
app.command("replay")(replay_command.replay)
app.command("runbook")(runbook_command.runbook)
app.command("simulate")(simulate_command.simulate)
app.command("top")(top_command.top)
app.command("validate")(validate_command.validate)
app.command("crds")(crds_command.crds)


def _version_text() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"pagefleet {version('pagefleet')}"
    except PackageNotFoundError:
        return "pagefleet (run from a source tree, not installed)"


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(_version_text())


def _print_version_and_exit(wanted: bool) -> None:
    if wanted:
        typer.echo(_version_text())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version_and_exit, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1 failed, 2 the user's mistake, 130 interrupted."""
    try:
        app(args=list(arguments), prog_name="pagefleet")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CommandError as error:
        for sentence in error.sentences:
            typer.echo(sentence, err=True)
        return error.exit_code
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        typer.echo(f"Unexpected error: {what} (set {DEBUG_VARIABLE}=1 to see the traceback).", err=True)
        return EXIT_FAILURE
    return 0


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
