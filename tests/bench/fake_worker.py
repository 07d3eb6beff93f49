"""A worker that speaks the protocol and whose specification says how it is to end."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from bench.standalone.serve import UnsupportedError, serve

# As some libraries do while they are imported.
sys.stdout.write("What a library prints must not end up before the answers.\n")
sys.stdout.flush()


class Fake:
    """Counts its runs, or ends as it is told to."""

    def __init__(self, ending: str) -> None:
        self.ending, self.runs = ending, 0

    def run(self) -> float:
        self.runs += 1
        if self.runs > 2:
            ENDINGS.get(self.ending, int)()
        sys.stdout.write("Nor between them.\n")
        sys.stdout.flush()
        return float(self.runs)

    def result(self) -> dict[str, np.ndarray]:
        return {"runs": np.array(self.runs)}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fail() -> None:
    raise ValueError("as it was told to")


def _leave() -> None:
    os._exit(3)


def _sleep() -> None:
    time.sleep(60)


def _grow() -> None:
    # 64 GiB, which the memory limit of the test refuses.
    np.ones(1 << 33)


def _linger() -> None:
    # As a library that waits for processes of its own while Python ends.
    os.closerange(3, 256)
    time.sleep(60)


ENDINGS = {
    "killed": _die,
    "fails": _fail,
    "sleeps": _sleep,
    "grows": _grow,
    "exits": _leave,
    "lingers": _linger,
}


def load(specification: dict, folder: object) -> str:
    if specification["ending"] == "unsupported":
        raise UnsupportedError("not here")
    return specification["ending"]


if __name__ == "__main__":
    serve(load, lambda specification, ending: Fake(ending))
