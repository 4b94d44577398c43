"""Run the operator as `python -m pagefleet.operator`, with settings from the environment alone."""

import sys

from pagefleet.operator.start import start

if __name__ == "__main__":
    sys.exit(start())
