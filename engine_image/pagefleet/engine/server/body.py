"""Read request bodies, of JSON only and of bounded size."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from pagefleet.engine.server.disconnect import ClientDisconnected
from pagefleet.engine.server.errors import HttpError
from pagefleet.engine.server.parse import RequestModel, parse_request

MAX_BODY_BYTES = 16 * 2**20
"""Some million tokens of text, more than any context; a larger body would only fill memory."""
DISCARD_S = 10.0
"""How long the rest of a body that is too large is read and dropped before the refusal: a busy server reads slowly."""
INLINE_BODY_BYTES = 64 * 2**10
"""Smaller bodies are parsed in well under a millisecond."""


async def read_request(kind: type[RequestModel], request: Request) -> RequestModel:
    """Read and check a request; raises RequestRefused, HttpError 413 or 415, or ClientDisconnected."""
    body = await _read_json(request)
    if len(body) <= INLINE_BODY_BYTES:
        return parse_request(kind, body)
    return await asyncio.to_thread(parse_request, kind, body)


async def _read_json(request: Request) -> bytes:
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, f"the body is {kind}; send Content-Type: application/json", code="unsupported_media_type")
    length = request.headers.get("content-length", "0")
    is_too_large = length.isdigit() and int(length) > MAX_BODY_BYTES
    body = bytearray()
    stream = request.stream()
    try:
        if not is_too_large:
            async for chunk in stream:
                body += chunk
                if is_too_large := len(body) > MAX_BODY_BYTES:
                    break
        if is_too_large:
            await _discard(stream)
            raise _too_large()
    except ClientDisconnect as error:
        raise ClientDisconnected from error
    return bytes(body)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    """Read on for a moment: a connection closed under a client that still sends takes the answer with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            async for _ in stream:
                pass


def _too_large() -> HttpError:
    return HttpError(
        413,
        f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB",
        code="body_too_large",
        headers={"Connection": "close"},  # what is still coming is not read
    )
