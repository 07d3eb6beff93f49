"""Shared lock: no thread reads or runs a model while another thread changes a model for a while.

A trace replaces a model's parameters by other tensors. A check runs a layer's functions and takes their side effects back.

A holder is a context (:mod:`contextvars`), not a thread: work that is handed to another thread with
``contextvars.copy_context().run`` belongs to the holder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal

_How = Literal["reading", "changing"]


class SharedLock:
    """A lock for many readers or one writer. A holder may enter it again.

    A reader may start to change. It does not count as a reader until the change is done; otherwise two such readers would
    wait for each other.

    """

    def __init__(self) -> None:
        self._held: ContextVar[Literal["no"] | _How] = ContextVar("held", default="no")
        self._restart()
        os.register_at_fork(after_in_child=self._restart)

    def _restart(self) -> None:
        # Threads that hold the lock do not exist in a child process.
        self._condition = threading.Condition(threading.Lock())
        self._num_readers = 0
        self._num_waiting = 0
        self._is_changing = False

    def reading(self) -> AbstractContextManager[None]:
        """Hold the lock beside other readers, in a ``with`` block that begins at once."""
        return self._holding("reading") if self._held.get() == "no" else nullcontext()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock alone."""
        before = self._held.get()
        if before == "reading":
            self._leave("reading")
        try:
            with self._holding("changing") if before != "changing" else nullcontext():
                yield
        finally:
            if before == "reading":
                self._enter("reading")

    @contextmanager
    def _holding(self, how: _How) -> Iterator[None]:
        self._enter(how)
        token = self._held.set(how)
        try:
            yield
        finally:
            self._held.reset(token)
            self._leave(how)

    def _enter(self, how: _How) -> None:
        with self._condition:
            if how == "reading":
                # Writers go first; otherwise readers that take turns would keep a writer waiting forever.
                self._condition.wait_for(lambda: not (self._is_changing or self._num_waiting))
                self._num_readers += 1
                return
            self._num_waiting += 1
            try:
                self._condition.wait_for(lambda: not (self._is_changing or self._num_readers))
                self._is_changing = True
            finally:
                self._num_waiting -= 1
                # If the wait was interrupted, readers may go on.
                self._condition.notify_all()

    def _leave(self, how: _How) -> None:
        with self._condition:
            if how == "reading":
                self._num_readers -= 1
            else:
                self._is_changing = False
            self._condition.notify_all()


MODELS = SharedLock()
"The lock of all models in the process."
