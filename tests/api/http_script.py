"""A real HTTP server on this machine that plays back what an API server can do wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

OBJECT: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "a", "resourceVersion": "1"}}


@dataclass(frozen=True)
class Reply:
    """One scripted reaction to a request."""

    status: int = 200
    body: bytes = json.dumps(OBJECT).encode()
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Whether it says nothing at all."""
    breaks_off: bool = False
    """Whether it closes the connection instead of answering."""


@dataclass
class Script:
    """The server: its address, what is left to play, and the requests it got."""

    url: str
    replies: Iterator[Reply]
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def kubeconfig(self, folder: Path, token: str = "t") -> Path:
        """Write a kubeconfig that leads here."""
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": token}}],
                }
            )
        )
        return path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append((method, target, headers, body))
        reply = next(self.replies)
        if reply.hangs:
            await reader.read()  # until the client leaves
            return False
        if reply.breaks_off:
            return False
        head = {"Content-Length": str(len(reply.body)), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in head.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
        await writer.drain()
        return True


@asynccontextmanager
async def playing(*replies: Reply) -> AsyncIterator[Script]:
    """Run a server that answers the requests in this order."""
    script = Script("", iter(replies))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script
