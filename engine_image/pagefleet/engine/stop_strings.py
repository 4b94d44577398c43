"""Find stop strings in text that arrives in pieces, holding back no more than could still become one."""

from collections.abc import Sequence


class StopStringFilter:
    """Pass text through until a stop string is complete.

    The result does not depend on how the text is cut into pieces: the stop string that is complete first wins, and of
    those complete at the same character the longest.
    """

    def __init__(self, stop_strings: Sequence[str], *, include_in_output: bool = False) -> None:
        self.matched: str | None = None
        """The stop string that ended the text."""
        self._stop_strings = tuple(stop_strings)
        self._include_in_output = include_in_output
        self._held = ""  # not yet passed on: the longest end of the text that begins some stop string

    def feed(self, piece: str, *, may_stop: bool = True) -> str:
        """Take the next piece and return the text that may be shown now.

        With `may_stop` false (fewer than `min_tokens` tokens so far) a stop string that this piece completes does not
        end the text. After a match nothing more may be fed.
        """
        if not self._stop_strings:
            return piece
        text = self._held + piece
        if may_stop and (found := self._find(text, len(self._held))) is not None:
            start, end, self.matched = found
            self._held = ""
            return text[: end if self._include_in_output else start]
        held_length = self._held_length(text)
        self._held = text[len(text) - held_length :]
        return text[: len(text) - held_length]

    def finish(self) -> str:
        """Return the text that was held back; the sequence has ended for another reason."""
        rest, self._held = self._held, ""
        return rest

    def _find(self, text: str, old_length: int) -> tuple[int, int, str] | None:
        """Return start, end and string of the first match that ends after `old_length`."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop_strings:
            start = text.find(stop, max(0, old_length - len(stop) + 1))
            if start >= 0:
                end = start + len(stop)
                if best is None or (end, start) < (best[1], best[0]):
                    best = (start, end, stop)
        return best

    def _held_length(self, text: str) -> int:
        """Return the length of the longest end of `text` that is a proper prefix of a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stop_strings) - 1)
        for length in range(longest, 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0
