"""`pagefleet.api.leader` on real Leases, with short times."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from pagefleet.api.client import KubernetesClient
from pagefleet.api.leader import LeaderElection, LeaseSettings
from pagefleet.api.resources import LEASES
from tests.operator.operator_process import Team

pytestmark = pytest.mark.timeout(60)


def election(client: KubernetesClient, namespace: str, identity: str, duration_s: float = 1.5) -> LeaderElection:
    settings = LeaseSettings(
        namespace=namespace,
        identity=identity,
        duration_s=duration_s,
        renew_deadline_s=duration_s * 2 / 3,
        retry_s=0.1,
    )
    return LeaderElection(client, settings, clock=time.monotonic, now=lambda: datetime.now(UTC))


async def test_one_of_many_wins_and_a_released_lead_passes_on_at_once(client: KubernetesClient, team: Team) -> None:
    elections = [election(client, team.namespace, str(number), duration_s=30) for number in range(5)]
    attempts = [asyncio.ensure_future(one.acquire()) for one in elections]
    await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.5)
    leading = [one for one in elections if one.is_leading]
    assert len(leading) == 1
    await leading[0].release()
    async with asyncio.timeout(10):  # a third of the time of a lead that was not released
        while not any(one.is_leading for one in elections if one is not leading[0]):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for attempt in attempts:
        attempt.cancel()


async def test_a_dead_leader_is_replaced_after_its_time_whatever_the_lease_says(
    client: KubernetesClient, team: Team
) -> None:
    dead, follower = (election(client, team.namespace, name) for name in ("dead", "follower"))
    await dead.acquire()
    lease = await client.get(LEASES, team.namespace, "pagefleet-operator")
    assert lease is not None
    lease["spec"]["renewTime"] = "2036-01-01T00:00:00.000000Z"
    await client.replace(LEASES, lease)
    began_s = time.monotonic()
    await follower.acquire()
    assert 1.5 <= time.monotonic() - began_s < 15.0
    assert follower.is_leading
    assert not dead.is_leading, "it has not renewed in time, and knows it"


async def test_a_leader_that_was_replaced_notices(client: KubernetesClient, team: Team) -> None:
    leader = election(client, team.namespace, "one", duration_s=30)
    await leader.acquire()
    keeping = asyncio.ensure_future(leader.keep())
    await asyncio.sleep(0.5)
    assert leader.is_leading
    lease = await client.get(LEASES, team.namespace, "pagefleet-operator")
    assert lease is not None
    for _ in range(5):  # the leader writes too
        lease = await client.get(LEASES, team.namespace, "pagefleet-operator")
        assert lease is not None
        lease["spec"]["holderIdentity"] = "two"
        if await _replaced(client, lease):
            break
    async with asyncio.timeout(15):  # it may be in the dark for 20 s
        await keeping
    assert not leader.is_leading


async def _replaced(client: KubernetesClient, lease: dict[str, object]) -> bool:
    from pagefleet.api.client_errors import Conflict

    try:
        await client.replace(LEASES, lease)
    except Conflict:
        return False
    return True
