"""The client against a real HTTP server that fails in every way an API server was seen to."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pagefleet.api.client import ApiError, Invalid, KubernetesClient, Unreachable
from pagefleet.api.resources import LEASES, PODS
from pagefleet.api.retry import NEVER, RetrySettings
from tests.api.http_script import OBJECT, Reply, Script, playing

QUICK = RetrySettings(attempts=3, first_pause_s=0.01, longest_pause_s=0.01)
BODY = {"metadata": {"name": "a", "namespace": "team"}}
STARTING = Reply(503, b"before all known HTTP paths have been installed")


@asynccontextmanager
async def connected(
    folder: Path, script: Script, *, timeout_s: float = 5.0, retry: RetrySettings = QUICK
) -> AsyncIterator[KubernetesClient]:
    kubeconfig = str(script.kubeconfig(folder))
    async with await KubernetesClient.connect(kubeconfig, "test/1", retry=retry, timeout_s=timeout_s) as client:
        yield client


@pytest.mark.parametrize("failure", [STARTING, Reply(429), Reply(500), Reply(504), Reply(breaks_off=True)])
async def test_what_passes_is_sent_again(tmp_path: Path, failure: Reply) -> None:
    async with playing(failure, failure, Reply()) as script, connected(tmp_path, script) as client:
        assert await client.get(PODS, "team", "a") == OBJECT
    assert [request[:2] for request in script.requests] == [("GET", "/api/v1/namespaces/team/pods/a")] * 3


async def test_patience_ends(tmp_path: Path) -> None:
    async with playing(STARTING, STARTING, STARTING) as script, connected(tmp_path, script) as client:
        with pytest.raises(ApiError, match="503 HTTP 503: before all known HTTP paths"):
            await client.get(PODS, "team", "a")
        assert client.last_answer_monotonic_s is not None


async def test_the_server_may_ask_for_time(tmp_path: Path) -> None:
    async with (
        playing(Reply(429, headers={"Retry-After": "0.3"}), Reply()) as script,
        connected(tmp_path, script) as client,
    ):
        began = time.monotonic()
        await client.get(PODS, "team", "a")
        assert time.monotonic() - began >= 0.3


async def test_a_server_that_never_answers(tmp_path: Path) -> None:
    hanging = Reply(hangs=True)
    async with (
        playing(hanging, hanging, hanging) as script,
        connected(tmp_path, script, timeout_s=0.2) as client,
    ):
        began = time.monotonic()
        with pytest.raises(Unreachable, match="GET /api/v1/namespaces/team/pods/a: no answer in time"):
            await client.get(PODS, "team", "a")
        assert 0.6 <= time.monotonic() - began < 10.0
        assert client.last_answer_monotonic_s is None


async def test_one_request_may_have_its_own_patience(tmp_path: Path) -> None:
    async with playing(Reply(hangs=True)) as script, connected(tmp_path, script, timeout_s=60.0) as client:
        with pytest.raises(Unreachable):
            await client.replace(LEASES, BODY, timeout_s=0.1, retry=NEVER)
    assert len(script.requests) == 1


async def test_nobody_listens(tmp_path: Path) -> None:
    async with playing() as script:
        pass
    async with connected(tmp_path, script) as client:
        with pytest.raises(Unreachable, match=r"GET /api/v1/namespaces/team/pods/a: .*127\.0\.0\.1"):
            await client.get(PODS, "team", "a")


@pytest.mark.parametrize("failure", [STARTING, Reply(breaks_off=True)])
async def test_a_create_that_may_have_worked_is_not_sent_again(tmp_path: Path, failure: Reply) -> None:
    async with playing(failure, Reply()) as script, connected(tmp_path, script) as client:
        with pytest.raises(ApiError):
            await client.create(PODS, BODY)
    assert len(script.requests) == 1


async def test_a_create_that_was_turned_away_is(tmp_path: Path) -> None:
    async with playing(Reply(429), Reply(201)) as script, connected(tmp_path, script) as client:
        assert await client.create(PODS, BODY) == OBJECT
    assert len(script.requests) == 2


async def test_an_apply_that_breaks_the_schema_is_not_sent_again(tmp_path: Path) -> None:
    refusal = Reply(500, json.dumps({"message": "failed to create typed patch object (a): x"}).encode())
    async with playing(refusal) as script, connected(tmp_path, script) as client:
        with pytest.raises(Invalid):
            await client.apply(PODS, BODY, "me")
    assert len(script.requests) == 1


async def test_an_apply_on_the_wire(tmp_path: Path) -> None:
    async with playing(Reply()) as script, connected(tmp_path, script) as client:
        await client.apply(PODS, BODY, "me", subresource="status", force=False)
    ((method, target, headers, body),) = script.requests
    assert (method, target) == ("PATCH", "/api/v1/namespaces/team/pods/a/status?fieldManager=me&force=false")
    assert headers["content-type"] == "application/apply-patch+yaml"
    assert (headers["authorization"], headers["user-agent"]) == ("Bearer t", "test/1")
    assert json.loads(body) == {"apiVersion": "v1", "kind": "Pod", **BODY}


async def test_a_new_token_is_read_when_the_old_one_is_refused(tmp_path: Path) -> None:
    async with playing(Reply(401), Reply(), Reply(401), Reply(401)) as script, connected(tmp_path, script) as client:
        script.kubeconfig(tmp_path, token="new")
        assert await client.get(PODS, "team", "a") == OBJECT
        with pytest.raises(ApiError, match="401"):
            await client.get(PODS, "team", "a")
    assert [request[2]["authorization"] for request in script.requests][:2] == ["Bearer t", "Bearer new"]
    assert len(script.requests) == 4


async def test_a_list_that_expires_begins_anew(tmp_path: Path) -> None:
    def page(name: str, token: str | None) -> Reply:
        metadata = {"resourceVersion": "7", "continue": token}
        return Reply(body=json.dumps({"metadata": metadata, "items": [{"metadata": {"name": name}}]}).encode())

    async with (
        playing(page("old", "t1"), Reply(410), page("a", "t2"), page("b", None)) as script,
        connected(tmp_path, script) as client,
    ):
        found = await client.list(PODS, "team", "x=y")
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert found.items[0]["kind"] == "Pod"
    assert found.resource_version == "7"
    assert script.requests[0][1] == "/api/v1/namespaces/team/pods?limit=500&labelSelector=x%3Dy"
    assert script.requests[3][1].endswith("continue=t2")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]"])
async def test_an_answer_that_is_no_object(tmp_path: Path, body: bytes) -> None:
    async with playing(Reply(body=body)) as script, connected(tmp_path, script) as client:
        with pytest.raises(ApiError, match=r"GET .* was answered with no JSON object"):
            await client.get(PODS, "team", "a")


@pytest.mark.parametrize("content", [None, "", "a: [", "kind: Config\n"])
async def test_a_kubeconfig_that_leads_nowhere(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ApiError, match=f"the kubeconfig {path} gives no access to a cluster"):
        await KubernetesClient.connect(str(path), "test/1")


async def test_outside_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiError, match="this pod's service account gives no access to a cluster: Service host"):
        await KubernetesClient.connect(None, "test/1")


async def test_a_password_in_netrc_is_not_sent_beside_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with playing(Reply()) as script, connected(tmp_path, script) as client:
        assert await client.get(PODS, "team", "a") == OBJECT
    assert script.requests[0][2]["authorization"] == "Bearer t"


async def test_the_proxy_of_the_environment_is_used_unless_it_excepts_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with playing(Reply(), Reply()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        elsewhere = replace(proxy, url="http://api.example:6443")
        async with connected(tmp_path, elsewhere) as client:
            assert await client.get(PODS, "team", "a") == OBJECT
        assert proxy.requests[0][1] == "http://api.example:6443/api/v1/namespaces/team/pods/a"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with playing(Reply()) as direct, connected(tmp_path, direct) as client:
            assert await client.get(PODS, "team", "a") == OBJECT
        assert len(proxy.requests) == 1


async def test_a_watch_yields_events_until_the_server_ends_it(tmp_path: Path) -> None:
    events = [{"type": "ADDED", "object": OBJECT}, {"type": "BOOKMARK", "object": OBJECT}]
    body = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    async with playing(Reply(body=body)) as script, connected(tmp_path, script) as client:
        found = [event async for event in client.watch(PODS, "team", "a=b", resource_version="7")]
    assert [(event.kind, event.item) for event in found] == [("ADDED", OBJECT), ("BOOKMARK", OBJECT)]
    ((_, target, _, _),) = script.requests
    assert target.startswith("/api/v1/namespaces/team/pods?watch=true&allowWatchBookmarks=true&resourceVersion=7&")


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(body=json.dumps(EXPIRED).encode() + b"\n"), "410 Expired: too old"),
        (Reply(410, json.dumps({"reason": "Expired", "message": "too old"}).encode()), "410 Expired: too old"),
        (Reply(503), "503"),
        (Reply(breaks_off=True), "Unreachable"),
        (Reply(body=b'{"type": "ADDED", "obj'), "cut off"),
    ],
)
async def test_a_watch_that_fails_says_how(tmp_path: Path, reply: Reply, told: str) -> None:
    async with playing(reply, reply) as script, connected(tmp_path, script) as client:
        with pytest.raises(ApiError, match=told):
            [event async for event in client.watch(PODS, resource_version="7")]
