"""Run the programs that build images: silent while they work, and shown in full when they fail."""

import subprocess
import sys


def run_quietly(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a program and return what it wrote on standard output; on failure show what it wrote on standard error."""
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    if finished.returncode:
        sys.stderr.write(finished.stderr)
        raise subprocess.CalledProcessError(finished.returncode, command[:1], finished.stdout, finished.stderr)
    return finished.stdout
