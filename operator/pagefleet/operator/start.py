"""How the operator's process begins: settings, logs, one event loop, an exit code."""

import asyncio
import logging
import os
import sys

from pagefleet.api.client_errors import ApiError
from pagefleet.api.process_environment import SettingsError
from pagefleet.operator.run import EXIT_FAILED, run_operator
from pagefleet.operator.settings import OperatorSettings, read_settings

EXIT_USER_MISTAKE = 2


def start(settings: OperatorSettings | None = None) -> int:
    """Run the operator and end the process: 0 asked to stop, 1 failed and worth starting again, 2 wrong settings."""
    try:
        settings = settings or read_settings()
    except SettingsError as error:
        sys.stderr.write(f"{error}.\n")
        return EXIT_USER_MISTAKE
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_run_and_exit(settings))


async def _run_and_exit(settings: OperatorSettings) -> int:
    try:
        code = await run_operator(settings)
    except ApiError as error:
        sys.stderr.write(f"{error}\n")
        code = EXIT_FAILED
    # kopf takes five seconds to end, and nothing of it is worth waiting for.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
