"""A small Hugging Face hub on this machine: the routes that a snapshot download asks, over real HTTP."""

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHUNK_BYTES = 8192


class Hub:
    """Serve folders as repositories, revisions `main` and `v2`, slowly if asked.

    `folder` is `organisation/tiny`; `others` are folders by the names of their repositories. `address` is where it
    listens.
    """

    def __init__(
        self,
        folder: Path,
        *,
        chunk_delay_s: float = 0.0,
        others: Mapping[str, Path] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        hub = self
        self.folders = {"organisation/tiny": folder, **(others or {})}
        self.chunk_delay_s = chunk_delay_s
        self.paths: list[str] = []
        """What was asked."""
        self.bytes_sent = 0
        """Of files."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, with_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, with_body=False)

            def log_message(self, *_arguments: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = request.path.split("?")[0]
        self.paths.append(path)
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        model, folder = f"/api/models/{name}", self.folders.get(name)
        if folder is None:
            self._send_refusal(request, "RepoNotFound")
        elif path in (model, f"{model}/revision/main", f"{model}/revision/v2"):
            self._send_json(request, {"id": name, "sha": COMMIT, "siblings": _siblings(folder)})
        elif path == f"{model}/tree/{COMMIT}":
            self._send_json(request, [_entry(file) for file in sorted(folder.iterdir())])
        elif path.startswith(f"/{name}/resolve/{COMMIT}/"):
            self._send_file(request, folder / path.rsplit("/", 1)[1], with_body=with_body)
        else:
            self._send_refusal(request, "RevisionNotFound" if path.startswith(f"{model}/") else "RepoNotFound")

    def _send_refusal(self, request: BaseHTTPRequestHandler, code: str) -> None:
        request.send_response(404)
        request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _send_json(self, request: BaseHTTPRequestHandler, value: object) -> None:
        body = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _send_file(self, request: BaseHTTPRequestHandler, file: Path, *, with_body: bool) -> None:
        content = file.read_bytes()
        first, _, last = request.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if first and last:
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[int(first) : int(last) + 1]
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.send_header("ETag", f'"{etag(file)}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.end_headers()
        if not with_body:
            return
        self.bytes_sent += len(content)
        for start in range(0, len(content), CHUNK_BYTES):
            request.wfile.write(content[start : start + CHUNK_BYTES])
            time.sleep(self.chunk_delay_s)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _siblings(folder: Path) -> list[dict[str, object]]:
    files = sorted(folder.iterdir())
    return [{"rfilename": file.name, "size": file.stat().st_size, "blobId": etag(file)} for file in files]


def _entry(file: Path) -> dict[str, object]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": etag(file)}


def etag(file: Path) -> str:
    """Return a name of the content, as the hub's git object ids are."""
    return hashlib.sha1(file.read_bytes()).hexdigest()
