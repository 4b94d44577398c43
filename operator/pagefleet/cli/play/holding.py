"""Requests that wait for a service to wake: so many, and so long."""

import asyncio
from collections.abc import Callable

MOST_HELD = 100
LONGEST_HOLD_S = 300.0


class NotHeld(Exception):
    """Say in a few words why a request does not wait any longer."""


class WaitingRoom:
    """Hold the requests of one service. A request whose task is cancelled, since its client left, is forgotten."""

    def __init__(self) -> None:
        self.waiting = 0
        self._changed = asyncio.Event()

    def look_again(self) -> None:
        """Have everyone who waits look whether it is over."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until it is over; raises NotHeld where too many wait, or for too long."""
        if self.waiting >= MOST_HELD:
            raise NotHeld(f"{MOST_HELD} requests wait for it to start")
        self.waiting += 1
        try:
            async with asyncio.timeout(LONGEST_HOLD_S):
                while not is_over():
                    await self._changed.wait()
        except TimeoutError:
            raise NotHeld(f"it did not start within {LONGEST_HOLD_S:g} s") from None
        finally:
            self.waiting -= 1
