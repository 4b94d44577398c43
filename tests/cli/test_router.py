"""`pagefleet.cli.play.router`: real HTTP upstreams on real ports behind the real router."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pagefleet.cli.play.holding import NotHeld
from pagefleet.cli.play.router import build_router, pick_model, upstream_client
from pagefleet.cli.play.server import RouterServer, base_url, listen

CHAT = "/v1/chat/completions"
Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class Replica:
    url: str
    in_flight: int = 0
    is_ready: bool = True


@dataclass
class Services:
    replicas: dict[str, list[Replica]] = field(default_factory=dict)

    def models(self) -> list[str]:
        return list(self.replicas)

    def ready_replicas(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas[model] if replica.is_ready]

    async def hold(self, model: str) -> None:
        assert model in self.replicas
        raise NotHeld("Downloading 63 %")


@contextlib.asynccontextmanager
async def serving(application: Starlette, servers: list[RouterServer]) -> AsyncIterator[str]:
    with listen("127.0.0.1", 0) as listener:
        server = RouterServer(application)
        servers.append(server)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield base_url(listener)
        finally:
            server.should_exit = server.force_exit = True
            await task


def engine(handler: Handler) -> Starlette:
    return Starlette(routes=[Route("/{path:path}", handler, methods=["POST"])])


@dataclass
class World:
    """A router in front of engines that a test adds."""

    stack: contextlib.AsyncExitStack
    services: Services
    client: httpx.AsyncClient
    url: str
    servers: list[RouterServer]

    async def add(self, model: str, handler: Handler) -> Replica:
        replica = Replica(await self.stack.enter_async_context(serving(engine(handler), self.servers)))
        self.services.replicas.setdefault(model, []).append(replica)
        return replica

    async def chat(self, model: str = "chat", path: str = CHAT) -> httpx.Response:
        return await self.client.post(path, json={"model": model})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        services = Services()
        servers: list[RouterServer] = []
        upstream = await stack.enter_async_context(upstream_client())
        url = await stack.enter_async_context(serving(build_router(services, upstream), servers))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False))
        yield World(stack, services, client, url, servers)
        for server in servers:  # together: each takes a moment
            server.should_exit = server.force_exit = True


def named(name: str) -> Handler:
    async def handler(request: Request) -> Response:
        return JSONResponse({"from": name, "path": request.url.path, "query": request.url.query})

    return handler


async def die(request: Request) -> Response:
    """Cut the connection before the first byte."""
    raise RuntimeError("cut")


def stream(
    *chunks: bytes, media_type: str = "text/event-stream", then: Callable[[], Awaitable[None]] | None = None
) -> Handler:
    async def handler(_request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk
            if then is not None:
                await then()

        return StreamingResponse(body(), media_type=media_type, headers={"x-engine": "one"})

    return handler


async def cut() -> None:
    raise RuntimeError("cut")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"])
async def test_every_post_goes_to_the_model_of_its_body(world: World, path: str) -> None:
    await world.add("chat", named("chat"))
    await world.add("code", named("code"))
    for model in ("chat", "code"):
        response = await world.chat(model, f"{path}?a=%2F1")
        assert response.json() == {"from": model, "path": path, "query": "a=%2F1"}


async def test_request_and_answer_pass_unchanged(world: World) -> None:
    seen: dict[str, object] = {}

    async def echo(request: Request) -> Response:
        seen.update(headers=dict(request.headers), body=await request.body())
        return Response(b"\x1f\x8bnot really gzip", 418, {"content-encoding": "gzip", "x-id": "7"}, "text/odd")

    await world.add("chat", echo)
    body = b'{ "model":"chat",  "x": 1e3 }'
    async with world.client.stream("POST", CHAT, content=body, headers={"authorization": "Bearer k"}) as response:
        raw = b"".join([chunk async for chunk in response.aiter_raw()])
    assert seen["body"] == body
    assert isinstance(seen["headers"], dict)
    assert seen["headers"]["authorization"] == "Bearer k"
    assert (response.status_code, response.headers["x-id"], raw) == (418, "7", b"\x1f\x8bnot really gzip")


async def test_the_least_loaded_ready_replica_answers(world: World) -> None:
    for name, in_flight, is_ready in (("busy", 2, True), ("idle", 1, True), ("draining", 0, False)):
        replica = await world.add("chat", named(name))
        replica.in_flight, replica.is_ready = in_flight, is_ready
    assert (await world.chat()).json()["from"] == "idle"
    assert [replica.in_flight for replica in world.services.replicas["chat"]] == [2, 1, 0]


async def test_chunks_are_not_held_back(world: World) -> None:
    release = asyncio.Event()

    async def wait() -> None:
        await release.wait()

    replica = await world.add("chat", stream(b"data: 1\n\n", then=wait))
    async with world.client.stream("POST", CHAT, json={"model": "chat"}) as response:
        chunks = response.aiter_raw()
        assert await asyncio.wait_for(anext(chunks), 30) == b"data: 1\n\n"  # while the engine still works
        assert replica.in_flight == 1
        release.set()
        assert [chunk async for chunk in chunks] == []
    assert response.headers["x-engine"] == "one"
    assert replica.in_flight == 0


async def test_a_client_that_leaves_closes_the_upstream(world: World) -> None:
    left = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    replica = await world.add("chat", stream(b"data: 1\n\n", then=wait))
    async with world.client.stream("POST", CHAT, json={"model": "chat"}) as response:
        await anext(response.aiter_raw())
    await asyncio.wait_for(left.wait(), 30)
    assert replica.in_flight == 0


async def test_a_client_that_leaves_before_the_first_byte_closes_the_upstream(world: World) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        await request.body()
        arrived.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left.set()
        return Response()

    await world.add("chat", handler)
    asking = asyncio.create_task(world.chat())
    await asyncio.wait_for(arrived.wait(), 30)
    asking.cancel()
    await asyncio.wait_for(left.wait(), 30)


@pytest.mark.parametrize("dead", [die, stream(then=cut)], ids=["before the headers", "before the first body byte"])
async def test_a_dead_replica_is_replaced_once(world: World, dead: Handler) -> None:
    await world.add("chat", dead)
    (await world.add("chat", named("second"))).in_flight = 1
    if dead is die:
        # an address where nobody listens: what a crashed replica looks like
        with listen("127.0.0.1", 0) as listener:
            world.services.replicas["chat"][0].url = base_url(listener)
    assert (await world.chat()).json()["from"] == "second"


async def test_when_no_other_replica_is_there_the_client_is_told(world: World) -> None:
    await world.add("chat", stream(then=cut))
    response = await world.chat()
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "replica_died"


async def test_a_replica_that_begins_to_drain_is_replaced(world: World) -> None:
    async def drain(request: Request) -> Response:
        first.is_ready = False
        return JSONResponse({"error": "draining"}, 503)

    first = await world.add("chat", drain)
    (await world.add("chat", named("second"))).in_flight = 1
    assert (await world.chat()).json()["from"] == "second"


async def test_a_full_queue_is_the_clients_to_handle(world: World) -> None:
    async def full(request: Request) -> Response:
        return JSONResponse({"error": "full"}, 503, {"retry-after": "9"})

    await world.add("chat", full)
    (await world.add("chat", named("second"))).in_flight = 1
    response = await world.chat()
    assert (response.status_code, response.headers["retry-after"]) == (503, "9")


async def test_a_stream_that_breaks_off_ends_in_an_error_event(world: World) -> None:
    await world.add("chat", stream(b'data: {"choices": [], "id": "1"}\n\n', then=cut))
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(model="chat", messages=[], stream=True)
        with pytest.raises(openai.APIError, match="replica ended"):
            async for _ in answer:
                pass


async def test_a_body_that_breaks_off_is_no_whole_body(world: World) -> None:
    await world.add("chat", stream(b'{"half":', media_type="application/json", then=cut))
    with pytest.raises(httpx.RemoteProtocolError):
        await world.chat()


async def test_no_ready_replica_is_503_with_the_phase(world: World) -> None:
    world.services.replicas["chat"] = []
    response = await world.chat()
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    error = response.json()["error"]
    assert error["message"] == "No replica of chat is ready: Downloading 63 %. Try again in 2 s."
    assert error["type"] == "service_unavailable"


@pytest.mark.parametrize(
    ("body", "status", "message", "code"),
    [
        (b"{", 400, "The body is not JSON", "invalid_json"),
        (b"[" * 100_000, 400, "The body is not JSON", "invalid_json"),
        (b"\xff", 400, "The body is not JSON", "invalid_json"),
        (b"[]", 400, "not a JSON object", "invalid_json"),
        (b"{}", 400, "model must be the name of a model: chat, code", None),
        (b'{"model": 1}', 400, "model must be the name of a model: chat, code", None),
        (b'{"model": "gpt"}', 404, "The model 'gpt' does not exist: here are chat, code.", "model_not_found"),
    ],
)
async def test_wrong_bodies(world: World, body: bytes, status: int, message: str, code: str | None) -> None:
    world.services.replicas = {"chat": [], "code": []}
    response = await world.client.post(CHAT, content=body)
    error = response.json()["error"]
    assert response.status_code == status
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("POST", "/x", 404)]
)
async def test_wrong_paths_have_openais_error_shape(world: World, method: str, path: str, status: int) -> None:
    response = await world.client.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


async def test_models_and_health_need_no_replica(world: World) -> None:
    world.services.replicas = {"chat": [], "code": []}
    assert (await world.client.get("/health")).status_code == 200
    models = (await world.client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["chat", "code"]


async def test_a_body_that_is_too_large_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefleet.cli.play.router.LARGEST_BODY_BYTES", 1 << 20)
    response = await world.client.post(CHAT, content=b"x" * (2 << 20))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_with_one_model_the_field_may_be_left_out() -> None:
    assert pick_model(json.dumps({"prompt": "x"}).encode(), ["chat"]) == "chat"
