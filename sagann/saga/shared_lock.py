"""Shared lock: no thread reads or runs a model while another thread changes a model for a while.

A trace replaces a model's parameters by other tensors. A check runs a layer's functions and takes their side effects back.
Threads that only read or run models do so at the same time.

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
    """A lock for many readers or one writer. A holder may enter it again.

    A reader may start to change. It does not count as a reader until the change is done; otherwise two such readers would
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
        # Threads that hold the lock do not exist in a child process.
        self._condition = threading.Condition(threading.Lock())
        self._num_readers = 0
        self._num_waiting = 0
        self._is_changing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock beside other readers."""
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
        """Hold the lock alone."""
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
            # Writers go first; otherwise readers that take turns would keep a writer waiting forever.
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
                # If the wait was interrupted, readers may go on.
                self._condition.notify_all()

    def _end_changing(self) -> None:
        with self._condition:
            self._is_changing = False
            self._condition.notify_all()


MODELS = SharedLock()
"The lock of all models in the process."
