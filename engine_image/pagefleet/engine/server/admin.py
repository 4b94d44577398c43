"""The app on the admin port: probes, capacity and drain, for Kubernetes and pagefleet's own control plane."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pagefleet.engine.server.capacity import CapacityReporter
from pagefleet.engine.server.public import new_app
from pagefleet.engine.server.state import ServerState


def create_admin_app(state: ServerState) -> FastAPI:
    """Make the admin app."""
    app = new_app()
    reporter = CapacityReporter(state)
    _add_probes(app, state)
    _add_drain(app, state)

    @app.get("/capacity")
    async def capacity() -> Response:
        return Response(reporter.report().model_dump_json(), media_type="application/json")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return app


def _probe(state: ServerState, *, is_passed: bool) -> JSONResponse:
    phase, progress, detail = state.phase()
    return JSONResponse({"phase": phase, "progress": progress, "detail": detail}, status_code=200 if is_passed else 503)


def _add_probes(app: FastAPI, state: ServerState) -> None:
    @app.get("/startupz")
    async def startupz() -> JSONResponse:
        return _probe(state, is_passed=state.serving is not None)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        return _probe(state, is_passed=state.is_ready)

    @app.get("/livez")
    async def livez() -> JSONResponse:
        return _probe(state, is_passed=state.is_live)


def _add_drain(app: FastAPI, state: ServerState) -> None:
    def answer(status: int = 200) -> JSONResponse:
        return JSONResponse({"draining": state.is_draining, "in_flight": state.requests_in_flight}, status)

    @app.post("/drain")
    async def drain() -> JSONResponse:
        state.drain()
        return answer()

    @app.post("/undrain")
    async def undrain() -> JSONResponse:
        return answer(200 if state.undrain() else 409)
