"""`pagefleet.operator.queue`: a state machine over the keys, and the workers on a loop."""

import asyncio
import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagefleet.operator.queue import Backoff, KeyedQueue, WorkQueue

KEYS = st.sampled_from("abcd")


class QueueMachine(RuleBasedStateMachine):
    """Compare with a plain model: when each key must next be handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: KeyedQueue[str] = KeyedQueue(Backoff(first_s=1, longest_s=8))
        self.now_s = 0.0
        self.due: dict[str, float] = {}
        self.working: set[str] = set()
        self.failures: dict[str, int] = {}

    def model_add(self, key: str, due_s: float) -> None:
        self.due[key] = min(due_s, self.due.get(key, due_s))

    @rule(key=KEYS, delay_s=st.floats(0, 10))
    def add(self, key: str, delay_s: float) -> None:
        self.queue.add(key, self.now_s + delay_s)
        self.model_add(key, self.now_s + delay_s)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def take(self) -> None:
        ready = {key: due for key, due in self.due.items() if due <= self.now_s and key not in self.working}
        key = self.queue.take(self.now_s)
        if not ready:
            assert key is None
            return
        assert key is not None
        assert ready[key] == min(ready.values())
        del self.due[key]
        self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), again=st.one_of(st.none(), st.floats(0, 10)))
    def succeed(self, data: st.DataObject, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.queue.done(key, self.now_s, requeue_after_s=again)
        self.working.remove(key)
        self.failures.pop(key, None)
        if again is not None:
            self.model_add(key, self.now_s + again)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), dice=st.floats(0, 1))
    def fail(self, data: st.DataObject, dice: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        pause_s = self.queue.failed(key, self.now_s, dice)
        self.working.remove(key)
        self.failures[key] = self.failures.get(key, 0) + 1
        full_s = min(8, 2 ** (self.failures[key] - 1))
        assert full_s / 2 <= pause_s <= full_s
        self.model_add(key, self.now_s + pause_s)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.due.pop(key, None)
        self.failures.pop(key, None)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert len(self.queue) == len(self.due)
        assert self.queue.working == self.working
        free = [due for key, due in self.due.items() if key not in self.working]
        assert self.queue.next_due_s() == min(free, default=None)


TestQueueMachine = QueueMachine.TestCase


class Clock:
    """A clock that the test turns, and that wakes the workers."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_key_is_worked_on_once_at_a_time_and_again_after_an_add_in_between() -> None:
    running: set[str] = set()
    seen: list[str] = []
    release = asyncio.Event()

    async def handle(key: str) -> None:
        assert key not in running
        running.add(key)
        seen.append(key)
        await release.wait()
        running.remove(key)

    queue: WorkQueue[str] = WorkQueue(handle, workers=3, clock=Clock(), dice=lambda: 0.5)
    work = asyncio.ensure_future(queue.run())
    queue.add("a")
    await asyncio.sleep(0.01)
    queue.add("a")
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(0.01)
    assert seen == ["a", "b"]
    release.set()
    await asyncio.sleep(0.01)
    assert seen == ["a", "b", "a"]
    assert queue.is_idle
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_a_failing_key_backs_off_and_holds_up_no_other() -> None:
    attempts = itertools.count()
    done = asyncio.Event()
    outcomes: list[bool] = []

    async def handle(key: str) -> float | None:
        if key == "bad" and next(attempts) < 3:
            raise ValueError("not yet")
        if key == "bad":
            done.set()
        return None

    queue: WorkQueue[str] = WorkQueue(
        handle,
        workers=1,
        clock=asyncio.get_running_loop().time,
        dice=lambda: 0.0,
        backoff=Backoff(first_s=0.02, longest_s=0.05),
        on_done=lambda _seconds, failed: outcomes.append(failed),
    )
    work = asyncio.ensure_future(queue.run())
    queue.add("bad")
    queue.add("good")
    async with asyncio.timeout(30):
        await done.wait()
    await asyncio.sleep(0)
    assert outcomes == [True, False, True, True, False]
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
