"""MODELS: the lock that keeps threads apart where a model is changed for a while.

A trace puts other tensors in the place of a model's parameters, and a check runs a layer's functions and takes back what they
change. No other thread may read or run a model meanwhile. Threads that only read or run models do so side by side.

A holder is a context (:mod:`contextvars`), not a thread: work that is handed to another thread with
``contextvars.copy_context().run`` belongs to the holder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal


class SharedLock:
    """Many holders that read, or one that changes. Both may be entered again by their holder.

    A holder that reads may go on to change: it does not count as a reader until the change is done, so that two of them do not
    wait for each other.

    Example:
        >>> lock = SharedLock()
        >>> with lock.reading(), lock.changing(), lock.reading():
        ...     pass
    """

    def __init__(self) -> None:
        self._held: ContextVar[Literal["no", "reading", "changing"]] = ContextVar("held", default="no")
        self._restart()
        os.register_at_fork(after_in_child=self._restart)

    def _restart(self) -> None:
        # Threads that held it do not live on in a child.
        self._condition = threading.Condition(threading.Lock())
        self._num_readers = 0
        self._num_waiting = 0
        self._is_changing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold it beside others that read."""
        if self._held.get() != "no":
            yield
            return
        self._begin_reading()
        token = self._held.set("reading")
        try:
            yield
        finally:
            self._held.reset(token)
            self._end_reading()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold it alone."""
        before = self._held.get()
        if before == "changing":
            yield
            return
        if before == "reading":
            self._end_reading()
        try:
            self._begin_changing()
            token = self._held.set("changing")
            try:
                yield
            finally:
                self._held.reset(token)
                self._end_changing()
        finally:
            if before == "reading":
                self._begin_reading()

    def _begin_reading(self) -> None:
        with self._condition:
            # Those that wait to change go first: otherwise readers that take turns would keep them waiting for ever.
            while self._is_changing or self._num_waiting:
                self._condition.wait()
            self._num_readers += 1

    def _end_reading(self) -> None:
        with self._condition:
            self._num_readers -= 1
            if not self._num_readers:
                self._condition.notify_all()

    def _begin_changing(self) -> None:
        with self._condition:
            self._num_waiting += 1
            try:
                while self._is_changing or self._num_readers:
                    self._condition.wait()
                self._is_changing = True
            finally:
                self._num_waiting -= 1
                # A wait that is interrupted must not leave readers behind.
                self._condition.notify_all()

    def _end_changing(self) -> None:
        with self._condition:
            self._is_changing = False
            self._condition.notify_all()


MODELS = SharedLock()
"The lock of all models of the process."
