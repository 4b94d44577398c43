"""kopf's part: log in and watch, nothing else. Every event goes to one function.

On some server faults kopf ends; then so does the process, which starts again in a second. It runs in our event loop:
in a thread of its own it would be in the way of each request, for the interpreter's lock.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import kopf

from pagefleet.api.labels import SERVICE_LABEL
from pagefleet.api.resources import INFERENCE_SERVICES, Resource
from pagefleet.operator.kopf_storage import NoDiffBase, NoProgress

JsonObject = dict[str, Any]
OnEvent = Callable[[Resource, str | None, JsonObject], None]


async def watch(
    resources: Iterable[Resource],
    on_event: OnEvent,
    *,
    namespaces: tuple[str, ...],
    kubeconfig: str | None,
    on_start: Callable[[], None],
) -> None:
    """Watch resources until kopf gives up, with an exception or without.

    `on_start` is called when kopf has installed its signal handlers, for ours to be put back.
    """
    resources = tuple(resources)
    if kubeconfig is not None:
        os.environ["KUBECONFIG"] = kubeconfig  # where kopf's log-in looks
    await kopf.operator(
        registry=_registry(resources, on_event, on_start, has_kubeconfig=kubeconfig is not None),
        settings=_settings(resources),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=asyncio.Event(),
    )


def _registry(
    resources: Iterable[Resource], pass_on: OnEvent, on_start: Callable[[], None], *, has_kubeconfig: bool
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        await asyncio.sleep(0.1)  # kopf installs its signal handlers in the turn of the loop after this one
        on_start()

    @kopf.on.login(registry=registry)
    def login(**context: Any) -> Any:
        # The log-in by service account without the client would need cluster DNS.
        return kopf.login_with_kubeconfig(**context) if has_kubeconfig else kopf.login_via_client(**context)

    def add(resource: Resource) -> None:
        async def on_event(event: Any, **_: Any) -> None:
            pass_on(resource, event["type"], event["object"])

        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)(on_event)

    for resource in resources:
        add(resource)
    return registry


def _settings(resources: Iterable[Resource]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # Kubernetes Events are ours to write
    settings.peering.standalone = True  # the Lease decides who acts
    settings.scanning.disabled = True  # kinds are fixed at start; no right to watch CustomResourceDefinitions is needed
    settings.watching.chunk_size = 500
    for resource in resources:
        if resource is not INFERENCE_SERVICES:  # what is not ours never comes over the wire
            settings.watching.label_selectors[resource.group, resource.version, resource.plural] = SERVICE_LABEL
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    # The default grows to 21 s between attempts: that long nothing would be seen after a short outage.
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 5, 5, 5)
    settings.persistence.finalizer = "serving.pagefleet.io/cleanup"  # unused; never kopf's own name on users' objects
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    logging.getLogger("kopf").setLevel(logging.WARNING)  # one line for each event
    return settings
