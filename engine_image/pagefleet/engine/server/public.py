"""The app on the public port: OpenAI's API and what belongs to it."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from pagefleet.engine.errors import EngineError
from pagefleet.engine.server import endpoints
from pagefleet.engine.server.body import read_request
from pagefleet.engine.server.disconnect import ClientDisconnected
from pagefleet.engine.server.errors import RETRY_LOADING_S, handle_error, unavailable, unknown_model
from pagefleet.engine.server.gate import Gate
from pagefleet.engine.server.openapi import openapi_document
from pagefleet.engine.server.protocol import DetokenizeRequest, TokenizeRequest
from pagefleet.engine.server.serving import Serving
from pagefleet.engine.server.state import ServerState

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that went away: nobody reads it, but it must not look like an answer."""


def new_app() -> FastAPI:
    """Make an app without the framework's own pages, whose errors all have OpenAI's shape."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, handle_error)
    app.add_exception_handler(EngineError, handle_error)
    app.add_exception_handler(Exception, handle_error)
    app.add_exception_handler(ClientDisconnected, _answer_nobody)
    return app


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def create_public_app(state: ServerState) -> ASGIApp:
    """Make the public app."""
    app = new_app()
    _add_generation(app, state)
    _add_models(app, state)
    _add_tokens(app, state)
    _add_service(app, state)
    return Gate(app, state)  # outside of the framework, so that it also sees answers to unexpected errors


def _loaded(state: ServerState) -> Serving:
    if state.serving is None:  # the gate lets nothing pass before
        raise unavailable("the model is not loaded yet", code="loading", retry_after_s=RETRY_LOADING_S)
    return state.serving


def _add_generation(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await endpoints.chat_completions(_loaded(state), request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await endpoints.completions(_loaded(state), request)


def _add_models(app: FastAPI, state: ServerState) -> None:
    def card() -> dict[str, Any]:
        serving = _loaded(state)
        return {
            "id": serving.model_name,
            "object": "model",
            "created": serving.created,
            "owned_by": "pagefleet",
            "max_model_len": serving.ready.max_model_len,
        }

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [card()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> JSONResponse:
        if name != state.model_name:
            raise unknown_model(name, state.model_name)
        return JSONResponse(card())


def _add_tokens(app: FastAPI, state: ServerState) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> JSONResponse:
        serving = _loaded(state)
        fields = await read_request(TokenizeRequest, request)
        serving.check_model(fields.model)
        if fields.messages is not None:
            tokens = await serving.encode_chat(
                fields.messages, fields, add_special_tokens=bool(fields.add_special_tokens)
            )
        else:
            (tokens,) = await serving.encode(
                [fields.prompt or ""], add_special_tokens=fields.add_special_tokens is not False
            )
        return JSONResponse(
            {
                "count": len(tokens),
                "max_model_len": serving.ready.max_model_len,
                "tokens": tokens,
                "token_strs": serving.tokenizer.token_texts(tokens) if fields.return_token_strs else None,
            }
        )

    @app.post("/detokenize")
    async def detokenize(request: Request) -> JSONResponse:
        serving = _loaded(state)
        fields = await read_request(DetokenizeRequest, request)
        serving.check_model(fields.model)
        serving.check_tokens(fields.tokens, "tokens")
        return JSONResponse({"prompt": serving.tokenizer.decode(fields.tokens)})


def _add_service(app: FastAPI, state: ServerState) -> None:
    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if state.is_ready else 503)

    @app.get("/ping")
    async def ping() -> Response:
        return Response(status_code=200 if state.is_ready else 503)

    @app.get("/load")
    async def load() -> JSONResponse:
        return JSONResponse({"server_load": state.requests_in_flight})

    @app.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(openapi_document(state.version))

    @app.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": state.version})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
