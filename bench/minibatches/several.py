"""Several contestants in one process, by name: they share what they read, and one of them runs at a time."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.standalone.serve import UnsupportedError


class Several:
    """Contestants that are made when they are first asked. One that fails says so, and the others go on.

    Args:
        makers: for each contestant's name, what makes it.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}
        self._failures: dict[str, dict[str, str]] = {}

    def run(self) -> float:
        """Nothing is rehearsed: the first epoch of every contestant is not counted."""
        return float("nan")

    def result(self) -> dict[str, np.ndarray]:
        """Nothing that contestants could compare."""
        return {}

    def ask(self, what: str, name: str) -> dict[str, Any]:
        """The result of a contestant's method, or ``{"failed": the reason, "detail": the traceback}``, now and from now on."""
        if name not in self._failures:
            try:
                if name not in self._made:
                    self._made[name] = self._makers[name]()
                found: dict[str, Any] = getattr(self._made[name], what)()
                return found
            except UnsupportedError as error:
                self._failures[name] = {"failed": str(error), "detail": str(error)}
            except Exception as error:  # noqa: BLE001
                # The parent reports the failure, and asks the other contestants.
                reason = f"{type(error).__name__}: {(str(error).splitlines() or ['without a message'])[0]}"
                self._failures[name] = {"failed": reason, "detail": traceback.format_exc()}
            # Its memory is for the others.
            self._made.pop(name, None)
        return self._failures[name]

    def forget(self, beginning: str) -> dict[str, Any]:
        """Drop the contestants whose names begin so, with their processes and memory."""
        self._made = {name: made for name, made in self._made.items() if not name.startswith(beginning)}
        gc.collect()
        return {}


REQUESTS = {
    "epoch": lambda several, name: several.ask("epoch", name),
    "alone": lambda several, name: several.ask("alone", name),
    "forget": lambda several, beginning: several.forget(beginning),
}
"For the worker's end of the pipe: an epoch of one contestant; its stages, each alone; or that some are not needed any more."
