"""`pagefleet play`: its flags."""

from pathlib import Path
from typing import Annotated

import typer

from pagefleet.cli.api_keys import first_api_key
from pagefleet.cli.errors import UserMistake, require_extra

PLAY_MODULES = ("httpx", "rich", "starlette", "uvicorn", "watchfiles")


def play(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Manifests (YAML).", show_default=False)],
    ask: Annotated[
        str | None, typer.Option(help="Ask this once a service is ready, print the answer and end.", metavar="QUESTION")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask; default the first in the files.")] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Go on serving after the answer.")] = False,
    host: Annotated[str, typer.Option(help="Address of the one URL for all models.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the one URL for all models; 0 takes any free port.")] = 8080,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get before a replica ends.")
    ] = 30.0,
) -> None:
    """Run the InferenceServices of manifests on this machine, and follow changes of the files."""
    require_extra("play", PLAY_MODULES)
    import os

    from pagefleet.cli.play import run

    if not 0 <= port <= 65_535:
        raise UserMistake(f"--port {port} is not a port: 0 to 65535, for example --port 8080.")
    if not 0 <= drain_timeout < float("inf"):
        raise UserMistake(
            f"--drain-timeout {drain_timeout:g} is not a time in seconds: for example --drain-timeout 30."
        )
    if ask is None and (model is not None or stay):
        raise UserMistake("--model and --stay belong to --ask: write --ask QUESTION, or leave them out.")
    options = run.PlayOptions(
        files=files,
        host=host,
        port=port,
        question=ask,
        model=model,
        stays=stay,
        drain_timeout_s=drain_timeout,
        api_key=first_api_key(os.environ.get("PAGEFLEET_API_KEY")),
        has_hub_token=bool(os.environ.get("HF_TOKEN")),
    )
    raise typer.Exit(run.play(options))
