"""The program: ``sagann``, or ``python -m sagann``."""

from __future__ import annotations

import sys

from sagann.cli.ctrl_c import CtrlC
from sagann.cli.failure import INTERRUPTED


def main() -> None:
    """Run the command that the process was started with, and exit."""
    try:
        with CtrlC().at_safe_moments():
            # The declarations of the commands take a good part of the time until one runs.
            from sagann.cli.main import run

            run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
