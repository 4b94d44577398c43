"""Run a module or script as a child that never outlives `play`: `python -m pagefleet.cli.play.child PROGRAM ARGS…`.

Standard input is a pipe that only `play` holds open. However `play` ends, SIGKILL included, the pipe closes: then the
engine gets SIGTERM, and what is left of its process group is killed a little later. Unlike PR_SET_PDEATHSIG this works
outside Linux, reaches grandchildren, and does not depend on which thread started the child.
"""

import os
import runpy
import signal
import sys
import threading
import time

ORPHAN_GRACE_S = 10.0


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Watch standard input in a thread, then become the program."""
    program, *arguments = sys.argv[1:]
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        # alter_sys: processes that multiprocessing spawns import the program, not this module.
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
