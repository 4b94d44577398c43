"""A hub repository's config.json and safetensors headers, by HTTP range requests: what a plan needs, never a weight.

Not the hub's own client: it blocks its thread, tries an unreachable hub for a minute, writes to a cache, and brings
50 MB of packages for four GET requests.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from pagefleet.capacity import ModelFacts, read_model
from pagefleet.capacity.safetensors_header import (
    INDEX_FILE,
    LENGTH_BYTES,
    SINGLE_FILE,
    files_of_index,
    header_length,
    read_header,
)

JsonObject = dict[str, Any]

MOST_JSON_BYTES = 16 * 2**20
"""Bound of one answer: the largest index of a published model has 9 MB."""
MOST_FILES = 512
FIRST_RANGE_BYTES = 2**17
"""Most headers are shorter, so that one request is enough."""
FILES_AT_ONCE = 4
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models are looked up."""

    endpoint: str = "https://huggingface.co"
    proxy: str | None = None
    """URL of the HTTP proxy on the way there."""


class HubFailure(Exception):
    """Say in one sentence why a repository's facts can't be had."""

    def __init__(self, sentence: str, *, has_answered: bool = True) -> None:
        super().__init__(" ".join(sentence.split()))
        self.has_answered = has_answered
        """False where the hub itself can't be reached, so that asking for other models is as vain."""


async def read_hub_model(session: aiohttp.ClientSession, hub: Hub, repository: str, revision: str | None) -> ModelFacts:
    """Return the facts of a model on the hub; raises HubFailure, or CannotPlan where its files contradict."""
    try:
        return await _read(_Repository(session, hub, repository), revision)
    except HubFailure:
        raise
    except aiohttp.ClientResponseError as error:
        where = f"{repository} at revision {revision}" if revision else repository
        raise HubFailure(_refusal(where, error.status)) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        sentence = f"{hub.endpoint} can't be reached ({str(error) or type(error).__name__})"
        raise HubFailure(sentence, has_answered=False) from None
    except (ValueError, RecursionError) as error:
        raise HubFailure(f"the files of {repository} can't be read: {error}") from None


def _refusal(where: str, status: int) -> str:
    if status in REFUSED:
        return f"{where} is private or gated (the hub answers {status}), and only its pods have the token"
    return f"{where} can't be read (the hub answers {status})"


@dataclass(frozen=True, slots=True)
class _Repository:
    session: aiohttp.ClientSession
    hub: Hub
    name: str

    async def info(self, revision: str) -> JsonObject:
        return await self._json(f"/api/models/{self.name}/revision/{quote(revision, safe='')}")

    async def file(self, commit: str, name: str) -> JsonObject:
        return await self._json(self._path(commit, name))

    async def header(self, commit: str, name: str) -> JsonObject:
        """Return the header of a file, in one request where it is short."""
        path = self._path(commit, name)
        front = await self._get(path, first=0, last=FIRST_RANGE_BYTES - 1)
        end = LENGTH_BYTES + header_length(front)
        if end > MOST_JSON_BYTES:
            raise HubFailure(f"the header of {name} in {self.name} has {end} bytes, more than {MOST_JSON_BYTES}")
        if end > len(front):
            front += await self._get(path, first=len(front), last=end - 1)
        return await asyncio.to_thread(read_header, front[LENGTH_BYTES:end])

    def _path(self, commit: str, name: str) -> str:
        return f"/{self.name}/resolve/{commit}/{quote(name)}"

    async def _json(self, path: str) -> JsonObject:
        content = await self._get(path)
        value = await asyncio.to_thread(json.loads, content)
        if not isinstance(value, dict):
            raise HubFailure(f"{self.hub.endpoint}{path} holds no JSON object")
        return value

    async def _get(self, path: str, *, first: int | None = None, last: int = MOST_JSON_BYTES) -> bytes:
        """Return an answer, or its bytes from `first` to `last`; at most that many even where the server sends all."""
        headers = {} if first is None else {"Range": f"bytes={first}-{last}"}
        url = f"{self.hub.endpoint}{path}"
        async with self.session.get(url, headers=headers, proxy=self.hub.proxy, raise_for_status=True) as answer:
            if first and answer.status != 206:
                raise HubFailure(f"{self.hub.endpoint} sends no parts of files")
            bound = last - (first or 0) + 1
            content = bytearray()
            async for chunk in answer.content.iter_chunked(2**16):
                content += chunk
                if len(content) >= bound:
                    break
        if first is None and len(content) >= bound:
            raise HubFailure(f"{url} has more than {MOST_JSON_BYTES} bytes")
        return bytes(content[:bound])


async def _read(repository: _Repository, revision: str | None) -> ModelFacts:
    info = await repository.info(revision or "main")
    commit = str(info.get("sha") or revision or "main")
    siblings = info.get("siblings")
    names = {str(one.get("rfilename")) for one in siblings if isinstance(one, dict)} if siblings else set()
    if INDEX_FILE in names:
        files = files_of_index(await repository.file(commit, INDEX_FILE))
    elif SINGLE_FILE in names:
        files = [SINGLE_FILE]
    else:
        raise HubFailure(f"{repository.name} has no safetensors files")
    if len(files) > MOST_FILES:
        raise HubFailure(f"{repository.name} has {len(files)} weight files, more than {MOST_FILES}")
    config = await repository.file(commit, "config.json")
    lane = asyncio.Semaphore(FILES_AT_ONCE)

    async def header(name: str) -> JsonObject:
        async with lane:
            return await repository.header(commit, name)

    headers = await asyncio.gather(*(header(name) for name in files))
    return await asyncio.to_thread(read_model, repository.name, config, headers)
