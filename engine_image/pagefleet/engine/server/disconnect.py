"""Stop working for a client that has gone, in every kind of handler.

Starlette notices a lost client only when it sends, and a plain handler sends once, at the end. So the work races a
reader of ASGI's `receive()`, whose next message after the body is `http.disconnect`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientDisconnected(Exception):
    """Say that the client has gone and the work was cancelled."""


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` and return its result; cancel it and wait for its clean-up if the client goes first.

    The request's body must have been read. Raises ClientDisconnected.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        for started in (task, watcher):
            started.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
