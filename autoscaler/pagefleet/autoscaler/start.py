"""How the autoscaler's process begins: logs, one event loop, an exit code."""

import asyncio
import gc
import logging
import sys

from pagefleet.api.client_errors import ApiError
from pagefleet.autoscaler.process_settings import ProcessSettings
from pagefleet.autoscaler.run import EXIT_FAILED, run_autoscaler

RARE_COLLECTIONS = (20_000, 20, 50)
"""What a tick leaves behind goes by reference counts; looking for cycles often takes a sixth of the time."""


def start(settings: ProcessSettings) -> int:
    """Run the autoscaler; 0 asked to stop, 1 failed and worth starting again."""
    # To standard error: standard output may be the decision log.
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    gc.freeze()
    gc.set_threshold(*RARE_COLLECTIONS)
    try:
        return asyncio.run(run_autoscaler(settings))
    except (ApiError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
