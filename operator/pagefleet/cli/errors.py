"""How a command ends early: with a sentence for the user, never with a traceback."""

import importlib.util
from collections.abc import Iterable, Sequence

EXIT_FAILURE = 1
EXIT_USER_MISTAKE = 2
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """End the command with one sentence per line and an exit code."""

    exit_code = EXIT_FAILURE

    def __init__(self, sentences: str | Sequence[str]) -> None:
        self.sentences = [sentences] if isinstance(sentences, str) else list(sentences)
        super().__init__("\n".join(self.sentences))


class UserMistake(CommandError):
    """Say what in the input is wrong and what would work; exit code 2."""

    exit_code = EXIT_USER_MISTAKE


def require_extra(extra: str, modules: Iterable[str]) -> None:
    """Check, without importing them, that an extra's modules are installed; raises UserMistake naming the extra."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise UserMistake(
            f"This command needs {', '.join(missing)}, not installed here: run pip install 'pagefleet[{extra}]'."
        )
