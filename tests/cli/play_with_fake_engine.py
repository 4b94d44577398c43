"""Run `pagefleet play` with the fake engine in place of the real one: arguments as of the real command."""

import dataclasses
import sys
from pathlib import Path

from pagefleet.cli import main
from pagefleet.cli.play import run

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
real_play = run.play


def play(options: run.PlayOptions) -> int:
    """Play with another engine."""
    return real_play(dataclasses.replace(options, engine_program=FAKE_ENGINE))


if __name__ == "__main__":
    run.play = play
    sys.exit(main.run(["play", *sys.argv[1:]]))
