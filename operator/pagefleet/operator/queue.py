"""A queue of keys: each at most once, each worked on by one worker at a time, failures backing off by themselves.

                add ------------------> due ---take---> working ---done--> (gone)
                 |  (the earlier time wins)               |  |---requeue after--> due
                 |---while working--> due again after it  |  |---failed--> due after a back-off

`KeyedQueue` is the pure part: time and dice are arguments. `WorkQueue` runs workers over it.
"""

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Time between attempts of one key."""

    first_s: float = 0.5
    """After the first failure; doubled each time."""
    longest_s: float = 60.0
    """Bound of the doubling."""

    def pause_s(self, failures: int, dice: float) -> float:
        """Return the pause after a number of failures; `dice`, 0 to 1, spreads keys that failed together."""
        pause_s: float = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return pause_s * (0.5 + 0.5 * dice)


class KeyedQueue(Generic[Key]):
    """Know which key is due when. All times are seconds of one clock."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._due_s: dict[Key, float] = {}
        """Keys that wait."""
        self._heap: list[tuple[float, int, Key]] = []
        """The same by time; entries that no longer agree with `_due_s` are skipped when they come up."""
        self._added = 0
        self._working: dict[Key, float] = {}
        """Since when keys are worked on."""
        self._again_s: dict[Key, float] = {}
        """When keys that are worked on are due once more."""
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._due_s) + len(self._again_s)

    @property
    def working(self) -> Set[Key]:
        """Keys that are worked on."""
        return self._working.keys()

    def add(self, key: Key, due_s: float) -> None:
        """Make a key due at a time; of two times the earlier wins."""
        times = self._again_s if key in self._working else self._due_s
        if times.get(key, due_s + 1) <= due_s:
            return
        times[key] = due_s
        if times is self._again_s:
            return
        self._added += 1
        heapq.heappush(self._heap, (due_s, self._added, key))

    def take(self, now_s: float) -> Key | None:
        """Return a key that is due and that nobody works on, or None; the caller must call `done`."""
        due_s = self.next_due_s()
        if due_s is None or due_s > now_s:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due_s[key]
        self._working[key] = now_s
        return key

    def done(self, key: Key, now_s: float, *, requeue_after_s: float | None = None) -> None:
        """Give a key back after success: its failures are forgotten."""
        self._give_back(key)
        self._failures.pop(key, None)
        if requeue_after_s is not None:
            self.add(key, now_s + requeue_after_s)

    def failed(self, key: Key, now_s: float, dice: float) -> float:
        """Give a key back after a failure; return the pause after which it is due again, in seconds."""
        self._give_back(key)
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        pause_s = self._backoff.pause_s(failures, dice)
        self.add(key, now_s + pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Drop a key that no longer exists."""
        self._due_s.pop(key, None)
        self._again_s.pop(key, None)
        self._failures.pop(key, None)

    def next_due_s(self) -> float | None:
        """Return when the next key that nobody works on is due, or None."""
        while self._heap and self._due_s.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def oldest_s(self, now_s: float) -> float:
        """Return for how long the most neglected key has been due or worked on; 0 for an idle queue."""
        since = [*self._working.values(), *(due_s for due_s in self._due_s.values() if due_s <= now_s)]
        return now_s - min(since, default=now_s)

    def _give_back(self, key: Key) -> None:
        del self._working[key]
        if (again_s := self._again_s.pop(key, None)) is not None:
            self.add(key, again_s)


class WorkQueue(Generic[Key]):
    """Run a handler for each key that is due: returns the seconds until the next look, or None."""

    def __init__(
        self,
        handler: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int,
        clock: Callable[[], float],
        dice: Callable[[], float],
        backoff: Backoff | None = None,
        on_done: Callable[[float, bool], None] = lambda _seconds, _failed: None,
    ) -> None:
        self._handler = handler
        self._workers = workers
        self._clock = clock
        self._dice = dice
        self._on_done = on_done
        self._keys: KeyedQueue[Key] = KeyedQueue(backoff)
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing is due now and nothing is worked on."""
        return self.oldest_s == 0.0 and not self._keys.working

    @property
    def is_full(self) -> bool:
        """Tell whether every worker works."""
        return len(self._keys.working) >= self._workers

    @property
    def oldest_s(self) -> float:
        """Seconds that the most neglected key has waited."""
        return self._keys.oldest_s(self._clock())

    def add(self, key: Key, delay_s: float = 0.0) -> None:
        """Have a key handled after a delay, once, however often it is added until then."""
        self._keys.add(key, self._clock() + delay_s)
        self._changed.set()

    def forget(self, key: Key) -> None:
        """Drop a key that no longer exists."""
        self._keys.forget(key)

    async def run(self) -> None:
        """Work until cancelled: one loop hands keys out, so that an added key wakes no idle worker in vain."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                while not self.is_full and (key := self._keys.take(self._clock())) is not None:
                    group.create_task(self._handle(key))
                await self._wait()

    async def _handle(self, key: Key) -> None:
        began_s = self._clock()
        try:
            after_s = await self._handler(key)
        except Exception as error:
            pause_s = self._keys.failed(key, self._clock(), self._dice())
            logger.warning("%s failed, again in %.1f s: %s", key, pause_s, error, exc_info=_traceback(error))
            self._on_done(self._clock() - began_s, True)
        else:
            self._keys.done(key, self._clock(), requeue_after_s=after_s)
            self._on_done(self._clock() - began_s, False)
        self._changed.set()

    async def _wait(self) -> None:
        """Sleep until a key is due and may be taken, or until something was added or done."""
        due_s = None if self.is_full else self._keys.next_due_s()
        try:
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock())):
                await self._changed.wait()
        except TimeoutError:
            pass


def _traceback(error: Exception) -> bool:
    """A refusal of the API server is a sentence; anything else is a bug of ours, and needs its place."""
    return not hasattr(error, "status")
