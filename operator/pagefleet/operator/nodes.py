"""The accelerators that the cluster has, from its nodes: how many, and how much memory the smallest has."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError
from pagefleet.api.resources import NODES
from pagefleet.operator.plan.observed import Accelerators

JsonObject = dict[str, Any]
MEBIBYTE = 2**20
FORBIDDEN = 403

logger = logging.getLogger(__name__)


def count_accelerators(nodes: Iterable[JsonObject]) -> dict[str, Accelerators]:
    """Return the accelerators by resource. Product and memory in MiB are labels of NVIDIA's feature discovery."""
    totals: dict[str, int] = {}
    memory: dict[str, int] = {}
    products: dict[str, set[str]] = {}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        is_cordoned = (node.get("spec") or {}).get("unschedulable", False)
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items():
            if "/" not in resource or not amount.isdecimal() or int(amount) == 0:
                continue
            totals[resource] = totals.get(resource, 0) + (0 if is_cordoned else int(amount))
            products.setdefault(resource, set()).add(labels.get(f"{resource}.product", ""))
            label = labels.get(f"{resource}.memory", "")
            if label.isdecimal():
                size = int(label) * MEBIBYTE
                memory[resource] = min(size, memory.get(resource, size))
    return {
        resource: Accelerators(
            total,
            memory.get(resource),
            next(iter(products[resource])) or None if len(products[resource]) == 1 else None,
        )
        for resource, total in totals.items()
    }


class NodeWatch:
    """Look at the nodes now and then; without the right to, know nothing."""

    def __init__(self, client: KubernetesClient, *, poll_s: float, on_change: Callable[[], None]) -> None:
        self._client = client
        self._poll_s = poll_s
        self._on_change = on_change
        self._known: dict[str, Accelerators] | None = None

    def accelerators_of(self, resource: str | None) -> Accelerators | None:
        """Return the accelerators of a resource; None where nodes are not known or no resource is asked for."""
        if resource is None or self._known is None:
            return None
        return self._known.get(resource, Accelerators(0))

    async def look(self) -> bool:
        """Read the nodes once; tell whether there is a point in looking again."""
        try:
            found = count_accelerators((await self._client.list(NODES)).items)
        except ApiError as error:
            logger.warning("nodes can't be read: %s", error)
            return error.status != FORBIDDEN
        before, self._known = self._known, found
        if before is not None and before != found:
            self._on_change()
        return True

    async def run(self) -> None:
        """Look until cancelled."""
        can_look = True
        while can_look:  # `prime` has looked already
            await asyncio.sleep(self._poll_s)
            can_look = await self.look()
