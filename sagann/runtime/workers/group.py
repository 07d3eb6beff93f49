"""Workers: the processes that train one model together, as one of them sees them.

All messages go from one worker to another; what is added is added in the order of the ranks. So every worker has the same bits, and the
same number of workers gives the same run. Only the bytes of tensors and of texts travel: nothing that is received is unpickled.
``torch.distributed`` does not authenticate its peers. How tensors travel depends on their device (:mod:`sagann.runtime.workers.carriers`).

A worker that does not answer ends the others: their error names its rank, and what they were doing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from sagann.errors import InputError, SagannError, WorkerError, first_line
from sagann.graph.large_arrays import empty_array
from sagann.kernels.seeds import generators_of
from sagann.partition import vertex_ranges
from sagann.runtime.team import START_TIMEOUT_S, Team
from sagann.runtime.workers.carriers import HostCarrier, Operation, connected_devices
from sagann.runtime.workers.side_channel import SideChannel, connect
from sagann.runtime.workers.stopwatch import Stopwatch

TIMEOUT_S = 60.0
"Seconds for which a worker waits for another one while they train, by default."


class Workers(Team):
    """All workers of a run, as the worker ``rank`` sees them. Made by :func:`sagann.runtime.workers.join_workers`.

    Args:
        rank: number of this worker, from 0.
        size: number of workers.
        timeout_s: seconds for which this worker waits for another one while they train.
        balance: name of the policy that divides the vertices (:data:`sagann.partition.BALANCES`).
        address: address at which the others reach this worker.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        timeout_s: float = TIMEOUT_S,
        balance: str = "edges",
        address: str = "127.0.0.1",
    ) -> None:
        self.rank, self.size, self.timeout_s, self.balance = rank, size, timeout_s, balance
        self._address = address
        self.sent_bytes = 0
        "Bytes that this worker has sent to the others by :meth:`transfer`."
        self.stopwatch = Stopwatch()
        "Measures this worker's own computing while it trains."
        self._carriers: dict[str, HostCarrier] = {"cpu": HostCarrier()}
        "What carries tensors, by the type of their device."
        self._asides: dict[str, SideChannel] = {}

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def bounds(self, indptr: Tensor) -> tuple[int, ...]:
        """Bounds of the ranges of vertices that the workers begin with."""
        return vertex_ranges(indptr, self.size, self.balance)

    def transfer(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        doing: str,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send tensors to other workers by rank, and fill tensors with what they send; all on the processor, or on the device of
        :meth:`compute_on`.

        Tensors are contiguous, and have the size and type of what is sent; empty ones do not travel. ``doing`` is what the workers do, for
        errors, as in "exchanging rows of the halo". A worker that does not answer in time is a WorkerError.
        """
        self.begin(sends, receives, doing, timeout_s=timeout_s)()

    def begin(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Tensor],
        doing: str,
        *,
        timeout_s: float | None = None,
        tag: int = 0,
    ) -> Callable[..., None]:
        """Begin what :meth:`transfer` does, and return a function that waits for the end. Tensors travel meanwhile.

        Until that function has returned, nobody writes to the tensors of ``sends``, and nobody reads those of ``receives``. All workers
        begin their transfers of the same tag in the same order; those of tensors on the CPU with different tags may begin in any order. The
        function takes its own ``timeout_s``, which counts from its call; a wait that times out closes the connection.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        works: list[tuple[Sequence[int], Any]] = []
        with self.stopwatch.waiting():
            for peers, start in self._operations(sends, receives, tag):
                with self._blaming(peers, doing, limit_s):
                    works += [(peers, work) for work in start()]
        self.sent_bytes += sum(tensor.nbytes for tensor in sends.values())

        def finish(timeout_s: float = limit_s) -> None:
            with self.stopwatch.waiting():
                for peers, work in works:
                    with self._blaming(peers, doing, timeout_s):
                        work.wait(timedelta(seconds=timeout_s))

        return finish

    @contextmanager
    def _blaming(self, peers: Sequence[int], doing: str, patience_s: float) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            text = _reason(error)
            # As gloo says it, and as NCCL does.
            if any(words in text.lower() for words in ("timed out", "timing out")):
                why = f"no answer within {patience_s:g} s while {doing}"
                hint = " A worker that is only slow wants a longer --worker-timeout."
                raise self._gone(peers, why, hint) from error
            raise self._gone(peers, f"its connection was lost ({text}) while {doing}") from error

    def _gone(self, peers: Sequence[int], why: str, hint: str = "") -> WorkerError:
        ranks = ", ".join(map(str, peers))
        said = f"worker {ranks} is gone" if len(peers) == 1 else f"one of the workers {ranks} is gone"
        return WorkerError(
            f"{said}: {why} (in worker {self.rank} of {self.size})",
            hint=f"Look for the first error of that worker, and start again; in training, continue with --resume.{hint}",
        )

    def add_up(self, tensor: Tensor, doing: str) -> Tensor:
        """The sum of one tensor [n] of each worker, added in the order of the ranks: the same bits at every worker.

        Each worker adds a slice, and sends its sum to all.
        """
        cuts = [len(tensor) * number // self.size for number in range(self.size + 1)]
        return self.rows_at(self.sum_of_own(tensor, cuts, doing), cuts, doing, first_only=False)

    def sum_of_own(self, rows: Tensor, bounds: Sequence[int], doing: str) -> Tensor:
        """This worker's own rows of the sum of each worker's rows of all vertices, added in the order of the ranks."""
        rows, slices = rows.contiguous(), [slice(*ends) for ends in pairwise(bounds)]
        mine = rows[slices[self.rank]]
        parts = {rank: torch.empty_like(mine) for rank in self.others}
        self.transfer({rank: rows[slices[rank]] for rank in self.others}, parts, doing)
        first, *others = [mine if rank == self.rank else parts[rank] for rank in range(self.size)]
        return sum(others, first)

    def rows_at(self, own: Tensor, bounds: Sequence[int], doing: str, *, first_only: bool) -> Tensor:
        own = own.contiguous()
        sends = {rank: own for rank in self.others if rank == 0 or not first_only}
        if first_only and not self.is_first:
            self.transfer(sends, {}, doing)
            return own[:0]
        rows = empty_array((bounds[-1], *own.shape[1:]), own.dtype, own.device)
        parts = [rows[slice(*ends)] for ends in pairwise(bounds)]
        parts[self.rank].copy_(own)
        self.transfer(sends, {rank: parts[rank] for rank in self.others}, doing)
        return rows

    def all_rows(self, own: Tensor, bounds: Sequence[int], doing: str) -> Tensor:
        """The rows of all vertices at every worker, from each worker's own, which get the sum of all workers' gradients."""
        rows: Tensor = _Gathered.apply(own, self, bounds, doing)  # type: ignore[no-untyped-call]
        return rows

    def exchange(
        self, tensors: Mapping[int, Tensor], doing: str, *, timeout_s: float | None = None
    ) -> dict[int, Tensor]:
        """Send each other worker a tensor of one dimension, which may be empty, and return what each one sent.

        The tensors have one type, whatever their lengths.
        """
        lengths = {rank: torch.tensor([len(tensor)]) for rank, tensor in tensors.items()}
        found = {rank: torch.empty(1, dtype=torch.int64) for rank in self.others}
        self.transfer(lengths, found, doing, timeout_s=timeout_s)
        received = {rank: tensors[rank].new_empty(int(found[rank])) for rank in self.others}
        self.transfer(tensors, received, doing, timeout_s=timeout_s)
        return received

    def texts(self, text: str, doing: str, *, timeout_s: float | None = START_TIMEOUT_S) -> list[str]:
        mine = _bytes_as_tensor(text.encode())
        found = self.exchange(dict.fromkeys(self.others, mine), doing, timeout_s=timeout_s)
        return [text if rank == self.rank else found[rank].numpy().tobytes().decode() for rank in range(self.size)]

    def from_first(self, content: bytes | None, doing: str, *, timeout_s: float | None = START_TIMEOUT_S) -> bytes:
        nothing = torch.empty(0, dtype=torch.uint8)
        mine = nothing if content is None else _bytes_as_tensor(content)
        found = self.exchange(dict.fromkeys(self.others, mine), doing, timeout_s=timeout_s)
        return content if content is not None else found[0].numpy().tobytes()

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        mine: SagannError | None = None
        try:
            yield
        except WorkerError:
            # A worker that is gone answers nobody.
            raise
        except SagannError as error:
            mine = error
        texts = self.texts("" if mine is None else str(mine), doing)
        if mine is not None:
            raise mine
        for rank, text in enumerate(texts):
            if text:
                raise InputError(
                    f"worker {rank} has failed while {doing}: {text} (in worker {self.rank} of {self.size})",
                    hint=f"Do what the error of worker {rank} says.",
                )

    def any(self, flag: bool, doing: str, *, timeout_s: float | None = None) -> bool:
        mine = dict.fromkeys(self.others, torch.tensor([flag]))
        if timeout_s is None and (channel := self._asides.get("steps")) is not None:
            # After every batch: gloo's thread would take a part of the core from the training step.
            found = channel.exchange({rank: [each] for rank, each in mine.items()}, doing)
            flags = [each for (each,) in found.values()]
        else:
            flags = list(self.exchange(mine, doing, timeout_s=timeout_s).values())
        return flag or any(map(bool, flags))

    @contextmanager
    def forward(self) -> Iterator[None]:
        self.stopwatch.start()
        yield
        self.stopwatch.turn()

    def add_gradients(self, parameters: Sequence[Parameter], numbers: Tensor) -> Tensor:
        self.stopwatch.stop()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        by_type = [
            [parameter for parameter in trained if parameter.dtype == dtype]
            for dtype in dict.fromkeys(parameter.dtype for parameter in trained)
        ]
        flats = [_flat_gradients(each) for each in by_type]
        device, channel, doing = parameters[0].device, self.aside("steps"), "adding gradients"
        # What a processor has found travels in one message; devices have carriers of their own. Of two workers each adds all of it, which
        # takes as many bytes as half of it and the sum of the other half.
        pieces = 1 if self.size == 2 else self.size
        parts = [flat.tensor_split(pieces) for flat in flats] if device.type == "cpu" else []
        states = [state if self.is_first else state[:0] for state in _random_states(device)]
        messages = {rank: [numbers, *states, *(part[rank % pieces] for part in parts)] for rank in range(self.size)}
        own = messages.pop(self.rank)
        found = channel.exchange(messages, doing) | {self.rank: own}
        in_order = [found[rank] for rank in range(self.size)]
        summed = [_sum(arrays) for arrays in zip(*(each[1 + len(states) :] for each in in_order), strict=True)]
        if not parts:
            flats = [self.add_up(flat, doing) for flat in flats]
        elif pieces == 1:
            flats = summed
        else:
            found = channel.exchange(dict.fromkeys(self.others, summed), doing) | {self.rank: summed}
            flats = [torch.cat([found[rank][at] for rank in range(self.size)]) for at in range(len(flats))]
        for of_type, flat in zip(by_type, flats, strict=True):
            num_workers, *gradients = flat.split([len(of_type), *map(Tensor.numel, of_type)])
            # As a list: each number of a device that is read alone would wait for the device.
            for parameter, count, gradient in zip(of_type, num_workers.tolist(), gradients, strict=True):
                parameter.grad = gradient.reshape(parameter.shape).clone() if count else None
        _set_random_states(in_order[0][1 : 1 + len(states)], device)
        return _sum([each[0] for each in in_order])

    def share_random_numbers(self, device: torch.device) -> None:
        states = _random_states(device)
        self.share(states, "sharing random numbers")
        _set_random_states(states, device)

    def share(self, tensors: Iterable[Tensor], doing: str) -> None:
        for tensor in tensors:
            values = tensor.detach().contiguous()
            if self.is_first:
                self.transfer(dict.fromkeys(self.others, values), {}, doing)
            else:
                self.transfer({}, {0: values}, doing)
                tensor.detach().copy_(values)

    def _operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> Sequence[Operation]:
        sends, receives = (
            {rank: tensor for rank, tensor in tensors.items() if tensor.numel()} for tensors in (sends, receives)
        )
        kinds = {tensor.device.type for tensor in (*sends.values(), *receives.values())}
        if not kinds:
            return []
        (kind,) = kinds
        return self._carriers[kind].operations(sends, receives, tag)

    def aside(self, name: str) -> SideChannel:
        """Connections of their own with the others, for what one thread exchanges beside the training step. All call this at the same time."""
        if name not in self._asides:
            limit_s = max(self.timeout_s, TIMEOUT_S)
            texts = partial(self.texts, doing=f"connecting for {name}", timeout_s=limit_s)
            links = connect(self.rank, self.size, self._address, texts, timeout_s=limit_s, gone=self._gone)
            self._asides[name] = SideChannel(links, rank=self.rank, timeout_s=self.timeout_s, gone=self._gone)
        return self._asides[name]

    def close(self) -> None:
        for channel in self._asides.values():
            channel.close()

    def compute_on(self, device: torch.device) -> None:
        """Compute on a device, and let tensors travel between it and the other workers' devices.

        All workers call this at the same time, with devices of one type. A second call changes nothing.

        Raises:
            WorkerError: the devices do not find each other.
        """
        if device.type in self._carriers:
            return
        doing = "connecting the devices"
        try:
            self._carriers[device.type] = connected_devices(device, timeout_s=max(self.timeout_s, TIMEOUT_S))
        except (RuntimeError, ValueError) as error:
            raise WorkerError(
                f"the devices of the workers do not find each other: {first_line(error)} (in worker "
                f"{self.rank} of {self.size}, {device})",
                hint="NCCL_DEBUG=INFO says more, and NCCL_SOCKET_IFNAME names the network's interface.",
            ) from error
        if self.balance == "cost":
            # For the stream that computes: the whole device would wait for what travels too, and for ever if a worker is gone.
            self.stopwatch = Stopwatch(finish=lambda: torch.cuda.current_stream(device).synchronize())
        # NCCL connects two devices in the first transfer between them, and keeps the host without a limit of time meanwhile. All workers are
        # here now.
        one = torch.ones(1, device=device)
        self.transfer(dict.fromkeys(self.others, one), {rank: torch.empty_like(one) for rank in self.others}, doing)

    def abort(self) -> None:
        """End what travels at once, because a worker has failed."""
        for carrier in self._carriers.values():
            carrier.abort()


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, workers: Workers, bounds: Sequence[int], doing: str) -> Tensor:
        ctx.workers, ctx.bounds, ctx.doing = workers, bounds, doing
        return workers.rows_at(own.detach(), bounds, doing, first_only=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.workers.sum_of_own(grad, ctx.bounds, f"{ctx.doing}, backward"), None, None, None


def _reason(error: RuntimeError) -> str:
    """What gloo or NCCL says, without gloo's line of its source and its advice on where to report errors."""
    return re.sub(r"^\[\S+:\d+\] ", "", first_line(error)).partition(". This is typically")[0]


def _bytes_as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _flat_gradients(parameters: Sequence[Parameter]) -> Tensor:
    """The gradients of parameters of one type, behind a number for each: whether there is one."""
    counts = [each.grad is not None for each in parameters]
    found = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in parameters]
    return torch.cat([found[0].new_tensor(counts), *(gradient.reshape(-1) for gradient in found)])


def _sum(arrays: Sequence[Tensor]) -> Tensor:
    first, *others = arrays
    return sum(others, first)


def _random_states(device: torch.device) -> list[Tensor]:
    return [generator.get_state() for generator in generators_of(device)]


def _set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    for generator, state in zip(generators_of(device), states, strict=True):
        generator.set_state(state)
