"""One tiny model and one running engine for all tests of the server that do not stop it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.engine_server import EngineServer
from tests.support.tiny_models import make_tiny_model

CONTEXT = 4096


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Iterator[EngineServer]:
    with EngineServer(tiny_model) as server:
        yield server.wait_ready()


@pytest.fixture(scope="session")  # to make one takes 40 ms of CPU time
def client(engine: EngineServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(engine: EngineServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(engine: EngineServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=30) as client:
        yield client
