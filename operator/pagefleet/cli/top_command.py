"""`pagefleet top`: every service of a cluster in one live table."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from pagefleet.cli.errors import UserMistake, require_extra

DEFAULT_KUBECONFIG = Path("~/.kube/config")
IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"


def top(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only this namespace.  [default: all]", show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table and end, as without a terminal.")] = False,
    watch: Annotated[float, typer.Option(metavar="SECONDS", help="Look again so often.")] = 5.0,
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Default $KUBECONFIG, ~/.kube/config, or the pod's.", show_default=False),
    ] = None,
) -> None:
    """Show every service: replicas, load, missed objectives, and what the autoscaler decides and why.

    Services in trouble come first. The numbers are those of `status`, so no Prometheus is needed.
    """
    require_extra("operator", ("aiohttp", "kubernetes"))
    if not watch >= 1:
        raise UserMistake(f"--watch {watch:g} is too often: the shortest is 1 second, for example --watch 5.")
    from rich.console import Console

    from pagefleet.cli.top.watch import show

    console = Console()
    interval_s = None if once or not console.is_terminal else watch
    asyncio.run(show(_find_kubeconfig(kubeconfig), namespace, interval_s, console))


def _find_kubeconfig(named: str | None) -> str | None:
    """Return the file to use, or None inside a pod."""
    found = named or os.environ.get("KUBECONFIG")
    if found:
        first = found.split(os.pathsep)[0]
        if not Path(first).expanduser().is_file():
            raise UserMistake(f"The kubeconfig {first} is no file: write --kubeconfig FILE with one that is there.")
        return found
    if DEFAULT_KUBECONFIG.expanduser().is_file():
        return str(DEFAULT_KUBECONFIG.expanduser())
    if IN_CLUSTER_VARIABLE in os.environ:
        return None
    raise UserMistake("No cluster: there is no ~/.kube/config and KUBECONFIG is not set; write --kubeconfig FILE.")
