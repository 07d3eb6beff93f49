"""A worker that speaks the protocol, and kills itself in its third run if its specification says so."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from bench.standalone.serve import UnsupportedError, serve


class Fake:
    """Counts its runs."""

    def __init__(self, ending: str) -> None:
        self.ending, self.runs = ending, 0

    def run(self) -> float:
        self.runs += 1
        if self.runs > 2 and self.ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        # As some libraries do; it must not end up between the answers.
        sys.stdout.write("What a library prints.\n")
        sys.stdout.flush()
        return float(self.runs)

    def result(self) -> dict[str, np.ndarray]:
        return {"runs": np.array(self.runs)}


def load(specification: dict, folder: object) -> str:
    if specification["ending"] == "unsupported":
        raise UnsupportedError("not here")
    return specification["ending"]


if __name__ == "__main__":
    serve(load, lambda specification, ending: Fake(ending))
