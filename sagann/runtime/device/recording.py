"""Recording: an epoch that is queued once, captured into a CUDA graph at its second turn, and launched from then on.

A graph repeats what the host has queued, with the same addresses and the same numbers. What may change from epoch to epoch therefore lies in a
:class:`Table`: seeds and learning rates, which one copy brings to the device before each launch. The host draws seeds as it does for an epoch
that is queued, so both have the same bits. What else a graph has baked in is compared before each launch; a change ends the recording.

A capture runs nothing. Where it fails, the same work is queued from the same random numbers, now and from then on, and ``cause`` says why.
"""

from __future__ import annotations

import gc
import math
import os
import random
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sagann.byte_size import format_bytes
from sagann.errors import first_line
from sagann.kernels.seeds import drawn_seed, generators_of, placing_seeds
from sagann.runtime.device.segments import GraphStreams
from sagann.runtime.device.streams import Streams

_NOT_THE_USERS = tuple(
    f"{folder}{os.sep}" for folder in (*torch.__path__, Path(__file__).parents[2], sysconfig.get_path("stdlib"))
)
"Folders of code that is not the user's."


class Table:
    """The numbers of an epoch that the host decides, on the device: learning rates, seeds, and what else the work is given.

    The host writes two pinned copies in turn, so that it need not wait for the copy of the last epoch.
    """

    def __init__(self, streams: Streams, num_rates: int, num_seeds: int, num_given: int = 0) -> None:
        self._streams = streams
        # A number has 16 bytes, so that all addresses are aligned alike: no kernel is compiled anew.
        shape = (num_rates + num_given + num_seeds, 2)
        self._on_host = streams.pinned(2 * 16 * shape[0]).view(torch.int64).reshape(2, *shape)
        self._on_device = torch.zeros(shape, dtype=torch.int64, device=streams.device)
        self._turn = 0
        self.rates = self._on_device.view(torch.float32)[:num_rates, 0].unbind()
        "The learning rate of each group of parameters, a float32 scalar."
        self.given = self._on_device[num_rates : num_rates + num_given, 0]
        "What the work is given: int64 [num_given]."
        self.seeds = self._on_device[num_rates + num_given :, 0].unbind()
        "The seeds in the order in which they are drawn, int64 scalars."

    def send(self, rates: Sequence[float], seeds: Sequence[int], given: Tensor | None = None) -> None:
        """Queue the copy of an epoch's numbers."""
        self._turn = 1 - self._turn
        numbers, first = self._on_host[self._turn], len(rates)
        numbers.view(torch.float32)[:first, 0] = torch.tensor(rates)
        if given is not None:
            numbers[first : first + len(given), 0] = given
        first += len(self.given)
        numbers[first : first + len(seeds), 0] = torch.tensor(seeds, dtype=torch.int64)
        self._streams.copy(self._on_device, numbers)


Work = Callable[..., Tensor]
"""Queues an epoch, or a batch: gets the learning rates on the device, scalars, and if there are any the numbers that it is given, int64 [num_given]
on the device. Gives its numbers, on the device."""


class Recording:
    """See the module. It runs inside :meth:`GraphStreams.queue`.

    Args:
        make: queues the work of an epoch.
        baked: what a graph of the work has baked in, by name: addresses, versions, options. What changes it in each epoch cannot be recorded.
        keep: keeps what the work changes on the host, and gives what puts it back.
        num_given: how many numbers the work is given each time, besides rates.
        cause: why the work cannot be recorded; None where it is tried.
        most_bytes: most bytes of the device that recordings may reserve.
    """

    def __init__(
        self,
        streams: GraphStreams,
        make: Work,
        baked: Callable[[], Mapping[str, object]],
        keep: Callable[[], Callable[[], None]],
        *,
        num_rates: int,
        num_given: int = 0,
        cause: str | None = None,
        most_bytes: float = math.inf,
    ) -> None:
        self.cause = cause
        "Why epochs are queued one by one; None while they are recorded, or will be."
        self.queued_s = 0.0
        "Seconds of the host that the last epoch took to be queued."
        self._streams, self._make, self._baked_now, self._keep = streams, make, baked, keep
        self._num_rates, self._num_given, self._most_bytes = num_rates, num_given, most_bytes
        self._table = Table(streams, num_rates, 0, num_given)
        self._num_seeds: int | None = None
        "Seeds that an epoch draws; None before the first one."
        self._baked: Mapping[str, object] = {}
        # A graph, and what it writes its numbers to. The work itself is kept, with all that it reads.
        self._launch: Callable[[], None] | None = None
        self._numbers: Tensor | None = None

    def run(self, rates: Sequence[float], given: Tensor | None = None) -> Tensor:
        """Queue or launch an epoch, which gets the int64 numbers that are given; gives its own, on the device until the next epoch."""
        if self._launch is not None and (name := _changed(self._baked, self._baked_now())):
            self._end(f"{name} changed after epochs were recorded")
        seeds: list[int] | None = None
        if self._launch is not None:
            seeds = [int(drawn_seed()) for _ in range(self._num_seeds or 0)]
        elif self.cause is None and self._num_seeds is not None:
            seeds = self._capture()
        if seeds is None or self._launch is None or self._numbers is None:
            return self._queue(rates, given)
        self._table.send(rates, seeds, given)
        self._launch()
        return self._numbers

    def _queue(self, rates: Sequence[float], given: Tensor | None) -> Tensor:
        seeds: list[int] = []

        def counted(seed: int) -> int:
            seeds.append(seed)
            return seed

        began_s = time.perf_counter()
        self._table.send(rates, (), given)
        with placing_seeds(counted):
            numbers = self._made(self._table)
        self.queued_s, self._num_seeds = time.perf_counter() - began_s, len(seeds)
        return numbers

    def _capture(self) -> list[int] | None:
        """Record an epoch; gives the seeds that it has drawn, or None where it cannot be recorded: then nothing has happened."""
        before, put_back, states = self._baked_now(), self._keep(), _random_states(self._streams.device)
        table = Table(self._streams, self._num_rates, self._num_seeds or 0, self._num_given)
        seeds = list[int]()

        def placed(seed: int) -> Tensor:
            seeds.append(seed)
            if len(seeds) > len(table.seeds):
                raise RuntimeError(_OTHER_SEEDS)
            return table.seeds[len(seeds) - 1]

        def work() -> None:
            with placing_seeds(placed):
                self._numbers = self._made(table)

        collects = gc.isenabled()
        # A kernel or a graph that is freed meanwhile would spoil the capture.
        gc.collect()
        gc.disable()
        try:
            self._launch = self._streams.capture(work)
        except Exception as error:  # noqa: BLE001 - work that is wrong itself fails again where it is queued.
            cause: str | None = _cause_of(error)
        else:
            cause = _why_not(self._streams.device, states, seeds, table)
            if cause is None and (name := _changed(before, self._baked_now())):
                cause = f"{name} changes in every epoch"
            if cause is None and self._streams.reserved_bytes > self._most_bytes:
                reserved, most = format_bytes(self._streams.reserved_bytes), format_bytes(int(self._most_bytes))
                cause = f"recordings reserve {reserved} of the device, of which {most} are for them"
        finally:
            if collects:
                gc.enable()
        if cause is not None:
            _restore(states, self._streams.device)
            put_back()
            self._end(cause)
            return None
        self._table, self._baked = table, before
        return seeds

    def _made(self, table: Table) -> Tensor:
        return self._make(table.rates, *([table.given] if self._num_given else []))

    def _end(self, cause: str) -> None:
        self.cause, self._launch, self._numbers = cause, None, None


_OTHER_SEEDS = "the model draws a different number of seeds in each epoch"


def _why_not(device: torch.device, states: tuple[Any, ...], seeds: Sequence[int], table: Table) -> str | None:
    """Why a capture that succeeded would not repeat what an epoch does."""
    after = _random_states(device)
    _restore(states, device)
    again = [int(drawn_seed()) for _ in seeds]
    # Random numbers of the host, besides the seeds, are baked in.
    if again != list(seeds) or _random_states(device) != after:
        return "the model draws random numbers on the host"
    return None if len(seeds) == len(table.seeds) else _OTHER_SEEDS


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the generators that an epoch may draw from."""
    drawn = [bytes(each.get_state().numpy()) for each in generators_of(device)]
    found: Any = np.random.get_state()
    return drawn, random.getstate(), (found[0], found[1].tobytes(), *found[2:])


def _restore(states: tuple[Any, ...], device: torch.device) -> None:
    drawn, python, numpy = states
    for generator, state in zip(generators_of(device), drawn, strict=True):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    random.setstate(python)
    np.random.set_state((numpy[0], np.frombuffer(numpy[1], np.uint32), *numpy[2:]))


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """The name of the first value that differs."""
    names = {**before, **after}
    return next((name for name in names if before.get(name) != after.get(name)), None)


def _cause_of(error: Exception) -> str:
    """Why a capture failed, with the user's line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "device memory is too small for a CUDA graph of the epoch"
    # CUDA may report its own error at the end of a capture that another one has spoilt.
    for each in (error, error.__context__ or error):
        frames = traceback.extract_tb(each.__traceback__)
        users = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
        if users:
            return f"{first_line(each)} ({Path(users[-1].filename).name}:{users[-1].lineno})"
    return first_line(error)
