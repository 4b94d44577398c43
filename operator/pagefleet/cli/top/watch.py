"""Look at a cluster again and again and show it: all that `pagefleet top` does with the outer world."""

import asyncio
import contextlib
from datetime import datetime

from rich.console import Console
from rich.live import Live

from pagefleet.api.client import ApiError, KubernetesClient, NotFound, Unreachable
from pagefleet.api.resources import INFERENCE_SERVICES
from pagefleet.api.retry import NEVER
from pagefleet.cli.errors import CommandError
from pagefleet.cli.top.table import render_table
from pagefleet.cli.top.view import ServiceRow, view_services

TIMEOUT_S = 10.0


async def show(kubeconfig: str | None, namespace: str | None, interval_s: float | None, console: Console) -> None:
    """Print the table once, or keep it on the screen when there is an interval; raises CommandError for the first."""
    try:
        client = await KubernetesClient.connect(kubeconfig, "pagefleet-top", retry=NEVER, timeout_s=TIMEOUT_S)
    except ApiError as error:
        raise CommandError(f"No cluster: {error.message}.") from error
    async with client:
        rows = await _look(client, namespace)
        if interval_s is None:
            console.print(render_table(rows, _none(rows, namespace)))
            return
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how it ends
            await _keep_on_screen(client, namespace, interval_s, rows, console)


async def _keep_on_screen(
    client: KubernetesClient, namespace: str | None, interval_s: float, rows: list[ServiceRow], console: Console
) -> None:
    seen = datetime.now()
    problem = ""
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            caption = problem or _none(rows, namespace) or f"{seen:%H:%M:%S}, every {interval_s:g} s, Ctrl-C ends"
            live.update(render_table(rows, caption), refresh=True)
            await asyncio.sleep(interval_s)
            try:
                rows, seen, problem = await _look(client, namespace), datetime.now(), ""
            except CommandError as error:
                problem = f"As of {seen:%H:%M:%S}. {error}"


async def _look(client: KubernetesClient, namespace: str | None) -> list[ServiceRow]:
    try:
        return view_services((await client.list(INFERENCE_SERVICES, namespace)).items)
    except NotFound as error:
        raise CommandError(
            "The cluster does not know InferenceServices: install the chart, or run pagefleet crds | kubectl apply "
            "--server-side -f -."
        ) from error
    except Unreachable as error:
        raise CommandError(f"The cluster does not answer: {error.message}.") from error
    except ApiError as error:
        raise CommandError(f"The cluster refuses to list services: {error.message}.") from error


def _none(rows: list[ServiceRow], namespace: str | None) -> str:
    where = "in any namespace" if namespace is None else f"in namespace {namespace}"
    return "" if rows else f"No InferenceService {where}."
