"""`pagefleet.autoscaler.watch` against a server that forgets and fails."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagefleet.api.client import KubernetesClient
from pagefleet.api.resources import PODS
from pagefleet.api.retry import NEVER
from pagefleet.autoscaler.watch import Watch
from tests.api.http_script import Reply, playing


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def listed(version: int, *items: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps({"metadata": {"resourceVersion": str(version)}, "items": items}).encode())


def events(*pairs: tuple[str, dict[str, Any]]) -> Reply:
    return Reply(body=b"".join(json.dumps({"type": kind, "object": item}).encode() + b"\n" for kind, item in pairs))


GONE = events(("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))


async def test_it_goes_on_from_the_latest_version_and_lists_again_when_that_is_forgotten(tmp_path: Path) -> None:
    seen: list[tuple[str, Any]] = []
    replies = (
        listed(5, pod("a", 3), pod("b", 4)),
        events(("MODIFIED", pod("a", 6)), ("DELETED", pod("b", 7)), ("BOOKMARK", pod("", 9))),
        events(("ADDED", pod("c", 10))),
        Reply(503),
        GONE,
        listed(20, pod("c", 10)),
        Reply(hangs=True),
    )
    async with (
        playing(*replies) as script,
        await KubernetesClient.connect(str(script.kubeconfig(tmp_path)), retry=NEVER) as client,
    ):
        watch = Watch(
            client,
            PODS,
            "team",
            "a=b",
            put=lambda item: seen.append(("put", item["metadata"]["name"])),
            drop=lambda item: seen.append(("drop", item["metadata"]["name"])),
            keep_only=lambda namespace, uids: seen.append(("keep", (namespace, sorted(uids)))),
            dice=lambda: 0.0,
        )
        running = asyncio.ensure_future(watch.run())
        async with asyncio.timeout(30):
            while len(script.requests) < len(replies):  # noqa: ASYNC110 - what it waits for is a list
                await asyncio.sleep(0.02)
        assert watch.is_filled.is_set()
        assert watch.is_current
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert seen == [
        *(("put", "a"), ("put", "b"), ("keep", ("team", ["a", "b"]))),
        *(("put", "a"), ("drop", "b")),
        ("put", "c"),
        *(("put", "c"), ("keep", ("team", ["c"]))),
    ]
    asked = [
        target.split("resourceVersion=")[-1].split("&")[0] for _, target, _, _ in script.requests if "watch" in target
    ]
    assert asked == ["5", "9", "10", "10", "20"]
