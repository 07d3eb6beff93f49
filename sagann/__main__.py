"""The program: ``sagann``, or ``python -m sagann``."""

from __future__ import annotations

import os
import sys

from sagann.cli.failure import INTERRUPTED, TERMINATED
from sagann.cli.signals import Signals


def main() -> None:
    """Run the command that the process was started with, and exit."""
    _open_closed_streams()
    _spin_briefly()
    signals = Signals()
    try:
        with signals.handled():
            # Importing the commands takes part of the start-up time, so signals are handled before.
            from sagann.cli.main import run

            run(signals)
    except (KeyboardInterrupt, Exception):
        # An import turns an interrupt into other errors.
        if signals.raised is None:
            raise
        sys.exit(TERMINATED if signals.is_terminated else INTERRUPTED)


def _open_closed_streams() -> None:
    """Open standard streams that are closed, as the null device.

    Else the next file that is opened gets the number of the stream, and output of libraries goes into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The new file gets the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python sets a stream to None if its number was closed.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _spin_briefly() -> None:
    """Have threads of OpenMP sleep after some 10 us of waiting for each other, unless the user has said how they wait.

    By default they spin for 3 ms, which keeps a core from the very thread that is waited for where other programs want the cores. OpenMP reads
    the variable when PyTorch loads it; processes that a command starts inherit it.
    """
    if not os.environ.get("OMP_WAIT_POLICY"):
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


if __name__ == "__main__":
    main()
