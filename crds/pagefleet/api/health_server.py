"""Health and metrics of operator and autoscaler over HTTP.

/healthz: the process is worth keeping. /readyz: started, leading or following. /metrics: Prometheus.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


async def start_health_server(
    port: int,
    registry: CollectorRegistry,
    *,
    find_fault: Callable[[], str | None],
    refresh: Callable[[], None],
) -> tuple[web.AppRunner, int]:
    """Serve until `cleanup` of the runner; return it and the port. `find_fault` says why the process is not healthy."""

    async def healthz(_: web.Request) -> web.Response:
        fault = find_fault()
        return web.Response(text=fault or "ok", status=503 if fault else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def show_metrics(_: web.Request) -> web.Response:
        refresh()
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", show_metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", port)  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    await site.start()
    bound = runner.addresses[0]
    return runner, int(bound[1])
