"""What is known of the models that services ask for: looked up on the hub beside the work, and remembered.

A look at a service never waits for the hub: it gets what is known, and comes again once there is more.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from pagefleet.api.v1alpha1 import ModelScheme, ModelSource
from pagefleet.capacity import CannotPlan, ModelFacts
from pagefleet.operator.hub import Hub, HubFailure, read_hub_model
from pagefleet.operator.plan.observed import ModelKnowledge
from pagefleet.operator.store import ServiceKey

MOST_MODELS = 2048
"""Models that are remembered, some kilobytes each; the one that was asked for least recently is forgotten first."""
AT_ONCE = 2
"""Models that are looked up at once: headers of a large one take tens of megabytes while they are read."""
FETCH_TIMEOUT_S = 60.0
"""Bound of one model's requests together."""
ANSWER_TIMEOUT_S = 10.0
"""Bound of the hub's silence."""
PATIENCE_S = 5.0
"""How long new pods of a service wait for the hub. A hub that does not answer must not keep anything from starting."""
RETRY_S = 300.0
"""Time until a model that could not be looked up is tried again, if a service still asks for it."""

logger = logging.getLogger(__name__)

ModelKey = tuple[str, str | None]
"""Repository and revision."""


@dataclass(slots=True)
class _Model:
    asked_s: float
    """When it was first asked for, or last after a failure."""
    facts: ModelFacts | None = None
    obstacle: str | None = None
    is_fetching: bool = True
    services: set[ServiceKey] = field(default_factory=set)


class ModelWatch:
    """Know models by repository and revision. Without a hub, know nothing and say so."""

    def __init__(self, hub: Hub | None, *, clock: Callable[[], float], on_change: Callable[[ServiceKey], None]) -> None:
        self._hub = hub
        self._clock = clock
        self._on_change = on_change
        self._models: dict[ModelKey, _Model] = {}
        self._wanted: asyncio.Queue[ModelKey] = asyncio.Queue()
        self._is_reachable = True
        """Whether the last question to the hub was answered: if not, nobody waits for the next."""

    def knowledge_of(self, key: ServiceKey, model: ModelSource) -> ModelKnowledge:
        """Return what is known of a service's model, and have it looked up where that is nothing."""
        source = model.source
        if self._hub is None:
            return ModelKnowledge(obstacle="the operator looks up no models (PAGEFLEET_HUB is off)")
        if source.scheme is not ModelScheme.HF:
            return ModelKnowledge(obstacle=f"the files of {model.uri} are seen by its pods alone")
        name: ModelKey = (source.location, source.revision)
        now_s = self._clock()
        found = self._models.pop(name, None) or self._ask(name, now_s)
        self._models[name] = found  # the most recent one is last
        found.services.add(key)
        if found.obstacle is not None and not found.is_fetching and now_s - found.asked_s >= RETRY_S:
            found.asked_s, found.is_fetching = now_s, True
            self._wanted.put_nowait(name)
        if found.facts is not None or found.obstacle is not None:
            return ModelKnowledge(found.facts, found.obstacle or "", retry_s=None if found.facts else RETRY_S)
        left_s = PATIENCE_S - (now_s - found.asked_s)
        if left_s > 0 and self._is_reachable:
            return ModelKnowledge(pending_s=left_s)
        return ModelKnowledge(obstacle=f"{self._hub.endpoint} has not answered yet")

    def forget(self, key: ServiceKey) -> None:
        """Take a service off those that hear of its model."""
        for model in self._models.values():
            model.services.discard(key)

    async def run(self) -> None:
        """Look models up until cancelled."""
        if self._hub is None:
            return
        timeout = aiohttp.ClientTimeout(total=None, connect=ANSWER_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work(session, self._hub))

    def _ask(self, name: ModelKey, now_s: float) -> _Model:
        while len(self._models) >= MOST_MODELS:
            del self._models[next(iter(self._models))]
        self._wanted.put_nowait(name)
        return _Model(asked_s=now_s)

    async def _work(self, session: aiohttp.ClientSession, hub: Hub) -> None:
        while True:
            name = await self._wanted.get()
            model = self._models.get(name)
            if model is None:
                continue
            model.facts, model.obstacle = await self._fetch(session, hub, name)
            model.is_fetching = False
            for key in model.services:
                self._on_change(key)

    async def _fetch(
        self, session: aiohttp.ClientSession, hub: Hub, name: ModelKey
    ) -> tuple[ModelFacts | None, str | None]:
        repository, revision = name
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                facts = await read_hub_model(session, hub, repository, revision)
        except TimeoutError:
            self._is_reachable = False
            return None, f"{hub.endpoint} took more than {FETCH_TIMEOUT_S:.0f} s"
        except HubFailure as failure:
            self._is_reachable = failure.has_answered
            logger.info("no facts of model %s: %s", repository, failure)
            return None, str(failure)
        except CannotPlan as refusal:
            return None, str(refusal)
        except Exception:
            logger.exception("no facts of model %s", repository)
            return None, f"the files of {repository} have an unexpected form"
        self._is_reachable = True
        return facts, None
