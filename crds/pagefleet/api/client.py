"""Read and write Kubernetes objects: objects are dicts, answers are objects, None or typed errors."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Self

from pagefleet.api.client_connection import Connection, Request
from pagefleet.api.client_errors import ApiError, Conflict, Invalid, NotFound, Unreachable
from pagefleet.api.resources import PODS, Resource
from pagefleet.api.retry import RetrySettings

__all__ = [
    "ApiError",
    "Conflict",
    "Event",
    "Invalid",
    "KubernetesClient",
    "ListResult",
    "NotFound",
    "Object",
    "Unreachable",
]

Object = dict[str, Any]

REQUEST_TIMEOUT_S: Final = 10.0
LIST_CHUNK: Final = 500
"""Objects in one answer to a list: about 2 MB of pods, 35 ms to parse, in which the event loop stands still."""
LOG_BYTES: Final = 64 * 1024
"""Most bytes of a log that are fetched, since one line may be of any length."""

WATCH_S: Final = 240
"""After which time the server ends a watch; connections that live for ever stay with one API server for ever."""
WATCH_SILENCE_S: Final = 150.0
"""A watch that says nothing for so long has lost its connection: the server sends a bookmark each minute."""

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class ListResult:
    """Objects of one kind, and the moment in the cluster's history at which they were so."""

    items: tuple[Object, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Event:
    """One change that a watch reports."""

    kind: str
    """ADDED, MODIFIED or DELETED; BOOKMARK tells a version alone."""
    item: Object


class KubernetesClient:
    """Read and write objects over one connection; use it in one event loop, and close it there.

    Every method raises `ApiError`. What may pass later is sent again first, with growing pauses: 429, 5xx, no answer.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        user_agent: str = "pagefleet",
        *,
        retry: RetrySettings | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Self:
        """Return a client with the credentials of a kubeconfig, or of the pod this runs in. Sends no request."""
        retry = retry or RetrySettings()
        return cls(await Connection.open(kubeconfig, user_agent, retry=retry, timeout_s=timeout_s))

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def last_answer_monotonic_s(self) -> float | None:
        """When the API server last answered, whatever it said, by the monotonic clock; for health checks."""
        return self._connection.last_answer_monotonic_s

    async def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        timeout_s: float | None = None,
        retry: RetrySettings | None = None,
    ) -> Object | None:
        """Return an object, or None where it, its namespace or its kind does not exist."""
        try:
            return await self._object(Request("GET", resource.path(namespace, name), timeout_s=timeout_s, retry=retry))
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
    ) -> ListResult:
        """Return all objects of a kind, in one namespace or in all. Raises `NotFound` where the kind does not exist.

        A list that outlives the server's memory of its moment begins anew.
        """
        while True:
            items: list[Object] = []
            try:
                async for page in self.pages(resource, namespace, label_selector, field_selector=field_selector):
                    items += page.items
            except ApiError as error:
                if error.status != 410 or not items:
                    raise
                continue
            return ListResult(tuple(items), page.resource_version)

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
    ) -> AsyncIterator[ListResult]:
        """Yield all objects of a kind in chunks that belong to one moment; at least one, which may be empty.

        Raises `NotFound` where the kind does not exist, `ApiError` 410 when the server forgets the moment meanwhile.
        """
        query = {"limit": str(LIST_CHUNK), "labelSelector": label_selector, "fieldSelector": field_selector}
        header = {"apiVersion": resource.api_version, "kind": resource.kind}  # which items of a list lack
        token: str | None = None
        while True:
            page = await self._object(Request("GET", resource.path(namespace), {**query, "continue": token}))
            items = tuple({**header, **item} for item in page["items"] or ())
            yield ListResult(items, page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue")
            if not token:
                return

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        resource_version: str,
    ) -> AsyncGenerator[Event, None]:
        """Yield what happens after the moment of a list, until the server ends the answer after minutes.

        Sent once: the caller begins again at the latest event's version. Raises `ApiError`, 410 where the server has
        forgotten that moment and a list is due.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_S),
            "labelSelector": label_selector,
        }
        request = Request("GET", resource.path(namespace), query)
        async with aclosing(self._connection.lines(request, silence_s=WATCH_SILENCE_S)) as lines:
            async for line in lines:
                try:
                    event = json.loads(line)
                except ValueError as fault:  # the connection ended within an event
                    raise Unreachable(f"{request}: cut off") from fault
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    code, reason = item.get("code") or 0, item.get("reason") or "WatchError"
                    raise ApiError(code, reason, item.get("message") or "no message")
                yield Event(kind, item)

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        field_manager: str,
        *,
        subresource: str | None = None,
        force: bool = True,
    ) -> Object:
        """Server-side-apply what `field_manager` wants of an object, created where it is missing; return the object.

        With `metadata.uid` in the body a re-created namesake is a `Conflict`, and a deleted object stays deleted.
        A body that breaks the schema is `Invalid`; without `force` another manager's field is a `Conflict`.
        Custom resources don't take it for `scale`: use `patch_merge` there.
        """
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        path = _path_of(resource, body, subresource)
        return await self._object(Request("PATCH", path, query, _typed(resource, body), content_type=_APPLY))

    async def patch_merge(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Object:
        """Merge `body` into an object (RFC 7386: null removes, lists are replaced); return the object.

        A stale `metadata.resourceVersion` in the body is a `Conflict`. Unknown fields are refused, not dropped.
        """
        query = {"fieldManager": field_manager, "fieldValidation": "Strict"}
        path = resource.path(namespace, name, subresource)
        return await self._object(Request("PATCH", path, query, dict(body), content_type=_MERGE))

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        retry: RetrySettings | None = None,
    ) -> Object:
        """Create an object and return it. `Conflict` where the name is taken."""
        path = resource.path(body["metadata"].get("namespace"))
        return await self._write("POST", path, _typed(resource, body), timeout_s, retry)

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        retry: RetrySettings | None = None,
    ) -> Object:
        """Replace an object and return it. `Conflict` where `metadata.resourceVersion` is no longer the newest."""
        return await self._write("PUT", _path_of(resource, body, None), _typed(resource, body), timeout_s, retry)

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        """Delete an object, its dependants following in the background; tell whether it existed.

        With `uid`, a namesake of another identity is a `Conflict` and stays.
        """
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._object(Request("DELETE", resource.path(namespace, name), body=body))
        except NotFound:
            return False
        return True

    async def serves(self, resource: Resource) -> bool:
        """Tell whether the cluster has a kind. Any account may ask, without access to CustomResourceDefinitions."""
        try:
            found = await self._object(Request("GET", resource.group_path))
        except NotFound:
            return False
        return any(entry.get("name") == resource.plural for entry in found.get("resources") or ())

    async def logs(
        self, namespace: str, pod: str, *, container: str | None = None, tail_lines: int = 10, previous: bool = False
    ) -> str | None:
        """Return the last lines of a container's log, or None where there is none (yet): no pod, not started."""
        query = {
            "container": container,
            "tailLines": str(tail_lines),
            "previous": "true" if previous else None,
            "limitBytes": str(LOG_BYTES),
        }
        try:
            answer = await self._connection.answer(
                Request("GET", PODS.path(namespace, pod, "log"), query, accept="*/*")
            )
        except ApiError as error:
            if error.status in (400, 404):  # 400: the container waits, or has never ended before
                return None
            raise
        return answer.body.decode(errors="replace")

    async def _write(
        self, method: str, path: str, body: Object, timeout_s: float | None, retry: RetrySettings | None
    ) -> Object:
        request = Request(method, path, body=body, is_repeatable=False, timeout_s=timeout_s, retry=retry)
        return await self._object(request)

    async def _object(self, request: Request) -> Object:
        answer = await self._connection.answer(request)
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ApiError(answer.status, "NotAnObject", f"{request} was answered with no JSON object")
        return found


def _typed(resource: Resource, body: Mapping[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _path_of(resource: Resource, body: Mapping[str, Any], subresource: str | None) -> str:
    metadata = body["metadata"]
    return resource.path(metadata.get("namespace"), metadata["name"], subresource)
