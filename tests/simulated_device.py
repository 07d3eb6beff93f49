"""A device without hardware, for one process: PyTorch takes it for a device of another type, and the processor computes its numbers.

As on a CUDA device, an operator whose tensors are on different devices is refused, except for a single number of the processor, and a tensor
cannot become an array of NumPy. Other than there, an index on the processor is refused as well: it would be copied in every call.

What the host queues is counted, and can be recorded (:class:`SimulatedStreams`). As in the capture of a CUDA graph nothing is computed
meanwhile: results are poison. Refused is what CUDA refuses: to read a number, to wait, to copy pageable memory, to pin memory, and shapes that depend on
data. A recording that is launched runs its operators on the same storages, of which those that it made itself are poison at first. Of other
storages it keeps none alive: one that was freed is an error.

Registering a device cannot be taken back, so only programs of their own do that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

SIMULATED = "simulated"
"Type of the device, as in torch.device(SIMULATED, 0)."
_ATEN = torch.ops.aten
_COPIES = (_ATEN.copy_.default, _ATEN._to_copy.default)
_PINNED: list[Tensor] = []
"Pinned memory, kept so that an address means one thing."


class NotRecordableError(RuntimeError):
    """As CUDA says it: the operation is not permitted when the stream is capturing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"operation not permitted when stream is capturing: {what}")


# Not a tuple, which pytree would look into.
@dataclass(frozen=True)
class _Outside:
    """A tensor whose storage a recording does not keep alive."""

    storage: StorageWeakRef
    form: tuple[Any, ...]
    dtype: torch.dtype

    def found(self) -> Tensor:
        storage = None if self.storage.expired() else torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        assert storage is not None, "a recorded operator reads or writes memory that was freed"
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.form)


class _Node(NamedTuple):
    """An operator that was queued, and the tensors that its results go to; none where it works in place."""

    run: Callable[..., Any]
    args: Any
    kwargs: Any
    results: Sequence[Any]
    is_random: bool


class Tape:
    """Operators in the order in which they were queued; ``most_bytes`` is the memory for their results."""

    def __init__(self, most_bytes: float) -> None:
        self.nodes: list[_Node] = []
        self._most_bytes = most_bytes
        self._made: dict[int, Tensor] = {}
        "Storages that the recording keeps: those that it made, which hold no numbers when it is launched, and constants."
        self._poisoned: list[Tensor] = []

    def queue(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add an operator; its results, which are poison, or views."""
        schema = func._schema
        by_ids = func is _ATEN.index.Tensor and all(each is None or each.dtype != torch.bool for each in args[1])
        # The host has said how long the result is.
        is_known = by_ids or kwargs.get("output_size") is not None
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags) and not is_known:
            raise NotRecordableError(str(func))
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return func(*args, **kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        written = [each.alias_info is not None and each.alias_info.is_write for each in schema.arguments]
        if any(written) and all(each.alias_info is not None for each in schema.returns):
            self._add(func, args, kwargs, [], is_random)
            place = written.index(True)
            found = kwargs[schema.arguments[place].name] if place >= len(args) else args[place]
            return found if schema.returns else None
        return self.made_by(func, args, kwargs, func(*_meta(args), **_meta(kwargs)), is_random=is_random)

    def made_by(
        self, run: Callable[..., Any], args: Any, kwargs: Any, like: Any, *, is_random: bool = False
    ) -> Any:
        """Add an operator whose results are as ``like``."""
        results = pytree.tree_map_only(Tensor, self.empty, like)
        self._add(run, args, kwargs, pytree.tree_leaves(results), is_random)
        return results

    def kernel(self, run: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Add a kernel, which writes to its arguments."""
        self._add(run, args, kwargs, [], False)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Add a copy from or to pinned memory."""
        self._add(_ATEN.copy_.default, (target, source), {}, [], False)

    def empty(self, like: Tensor) -> Tensor:
        """Uninitialised memory, which belongs to the recording."""
        made = _poison(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu"))
        self._made[made.untyped_storage().data_ptr()] = made
        self._poisoned.append(made)
        if sum(each.nbytes for each in self._poisoned) > self._most_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a simulated block.")
        return made

    def constant(self, number: Tensor) -> Tensor:
        """A single number of the processor as it is now."""
        kept = number.clone()
        self._made[kept.untyped_storage().data_ptr()] = kept
        return kept

    def launch(self) -> None:
        """Run all operators."""
        for each in self._poisoned:
            _poison(each)
        for node in self.nodes:
            args, kwargs = pytree.tree_map_only(_Outside, _Outside.found, (node.args, node.kwargs))
            with _numbers_of_device() if node.is_random else nullcontext():
                found = node.run(*args, **kwargs)
            for result, value in zip(node.results, pytree.tree_leaves(found) if node.results else [], strict=True):
                if isinstance(result, Tensor):
                    # Batch norm gives no moments where it evaluates, except for tensors without numbers.
                    result.copy_(value) if value.numel() else None

    def _add(self, run: Any, args: Any, kwargs: Any, results: Sequence[Any], is_random: bool) -> None:
        args, kwargs = pytree.tree_map_only(Tensor, self._kept, (args, kwargs))
        self.nodes.append(_Node(run, args, kwargs, results, is_random))

    def _kept(self, tensor: Tensor) -> Tensor | _Outside:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._made or not storage.nbytes():
            return tensor
        return _Outside(
            StorageWeakRef(storage), (tensor.storage_offset(), tensor.shape, tensor.stride()), tensor.dtype
        )


def _poison(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)


def _meta(tree: Any) -> Any:
    """The same arguments without numbers, except for single numbers of the processor."""
    return pytree.tree_map_only(Tensor, lambda each: each.to("meta"), tree)


_DEVICE_NUMBERS: list[Tensor] = []
"The state of the device's own generator."


@contextmanager
def _numbers_of_device() -> Iterator[None]:
    """Inside the block, PyTorch draws from the device's generator."""
    on_host = torch.get_rng_state()
    torch.set_rng_state(_DEVICE_NUMBERS[0] if _DEVICE_NUMBERS else torch.Generator().manual_seed(7).get_state())
    try:
        yield
    finally:
        _DEVICE_NUMBERS[:] = [torch.get_rng_state()]
        torch.set_rng_state(on_host)


COUNTED: Counter[str] = Counter()
"What the host has queued: 'operators', 'copies', 'launches'; and how often it has waited: 'reads'."
_TAPES: list[Tape] = []
"The recording under way, at most one. Threads of autograd queue operators as well."
_LATE: list[Callable[[], object]] = []
"Copies and launches that the device has not begun yet. It begins them when the host waits for them, or queues an operator."


def reset() -> None:
    """Forget what an earlier run has left behind."""
    for each in (COUNTED, _TAPES, _LATE, _DEVICE_NUMBERS, _PINNED):
        each.clear()


def _run_late(count: int) -> None:
    for _ in range(count):
        _LATE.pop(0)()


def _is_pinned(tensor: Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(each.data_ptr() == address for each in _PINNED)


def _read(what: object) -> None:
    """The host reads from the device."""
    if _TAPES:
        raise NotRecordableError(str(what))
    COUNTED["reads"] += 1
    _run_late(len(_LATE))


class SimulatedTensor(Tensor):
    """A tensor on the device; ``values`` are its numbers, on the processor."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> SimulatedTensor:
        found: SimulatedTensor = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(SIMULATED, 0),
        )
        found.values = values
        return found

    def __init__(self, values: Tensor) -> None:
        pass

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def set_(self, source: Any, offset: int, size: Sequence[int]) -> SimulatedTensor:  # type: ignore[override]
        return SimulatedTensor(torch.empty(0, dtype=self.dtype).set_(source, offset, size))

    def tolist(self) -> Any:
        _read("tolist")
        return self.values.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values.untyped_storage()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        elsewhere = [each for each in given if not isinstance(each, cls) and each.ndim]
        if elsewhere and func not in _COPIES:
            raise RuntimeError(f"Expected all tensors to be on the same device, in {func}")
        to_processor = func in _COPIES[1:] and torch.device(kwargs.get("device") or SIMULATED).type == "cpu"
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        if (
            to_processor
            or func is _ATEN._local_scalar_dense.default
            or (elsewhere and not _is_pinned(elsewhere[0]))
        ):
            _read(func)
        COUNTED["operators"] += func not in _VIEWS
        if _TAPES:
            tape = _TAPES[-1]
            numbers = {
                id(each): tape.constant(each) for each in given if not isinstance(each, cls) and not each.ndim
            }
            args, kwargs = pytree.tree_map_only(Tensor, lambda each: numbers.get(id(each), each), (args, kwargs))
            result = tape.queue(func, pytree.tree_map(_values, args), pytree.tree_map(_values, kwargs))
        else:
            _run_late(len(_LATE))
            random = torch.Tag.nondeterministic_seeded in func.tags
            with _numbers_of_device() if random else nullcontext():
                result = func(*pytree.tree_map(_values, args), **pytree.tree_map(_values, kwargs))
        # An operator in place gives the tensor that it was given.
        known = {id(_values(each)): each for each in given}

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor) or to_processor:
                return value
            return known.get(id(value)) if id(value) in known else cls(value)

        return pytree.tree_map(placed, result)


_VIEWS = (
    _ATEN.detach.default,
    _ATEN.view.default,
    _ATEN.t.default,
    _ATEN.select.int,
    _ATEN.slice.Tensor,
    _ATEN.expand.default,
)
"Operators that queue nothing, among others."


def _values(value: Any) -> Any:
    return value.values if isinstance(value, SimulatedTensor) else value


class SimulatedStreams:
    """What :class:`sagann.runtime.device.recording.GraphStreams` asks of CUDA. The device begins copies and launches as late as it may."""

    most_bytes = float("inf")
    "Memory for the results of a recording."
    on_launch: Callable[[], None] = staticmethod(lambda: None)
    "Called when the device launches a recording."

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._given = self._done = 0

    @contextmanager
    def queue(self) -> Iterator[None]:
        yield

    def pinned(self, num_bytes: int) -> Tensor:
        if _TAPES:
            raise NotRecordableError("cudaHostRegister")
        _PINNED.append(torch.full((num_bytes,), 0xFF, dtype=torch.uint8))
        return _PINNED[-1]

    def copy(self, into: Tensor, source: Tensor) -> None:
        is_read = not isinstance(into, SimulatedTensor)
        assert _is_pinned(into if is_read else source)
        COUNTED["late reads" if is_read else "copies"] += 1
        self._late(lambda: _values(into).copy_(_values(source)))

    def mark(self, lane: str) -> int:
        return self._given

    def finish(self, mark: int) -> None:
        while self._done < mark:
            _run_late(1)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if "no graphs" in FAULTS:
            raise RuntimeError("CUDA error: operation not supported")
        tape = Tape(self.most_bytes)
        _run_late(len(_LATE))
        _TAPES.append(tape)
        try:
            work()
        finally:
            _TAPES.pop()

        def launch() -> None:
            COUNTED["launches"] += 1
            self._late(lambda: (self.on_launch(), tape.launch()))

        return launch

    def _late(self, work: Callable[[], object]) -> None:
        self._given += 1

        def done() -> None:
            self._done += 1
            work()

        _LATE.append(done)


class LoadStreams(SimulatedStreams):
    """What :class:`sagann.runtime.device.streams.Streams` asks of CUDA besides. There is one lane."""

    @contextmanager
    def on(self, lane: str) -> Iterator[None]:
        yield

    def wait(self, lane: str, mark: int) -> None:
        pass

    def is_passed(self, mark: int) -> bool:
        return self._done >= mark

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def empty(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def hand_over(self, tensor: Tensor) -> None:
        pass


def queue_kernels() -> None:
    """Have Triton's interpreter, whose kernels are those of other modules, queue kernels on the device, and record them."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def queued(executor: Any, *args: Any, **kwargs: Any) -> None:
        COUNTED["operators"] += 1
        args, kwargs = [_values(each) for each in args], {name: _values(each) for name, each in kwargs.items()}
        if _TAPES:
            _TAPES[-1].kernel(partial(run, executor), args, kwargs)
        else:
            _run_late(len(_LATE))
            run(executor, *args, **kwargs)

    GridExecutor.__call__ = queued


FAULTS: set[str] = set()
"What the driver lacks."


def _made(make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """A tensor that an operator without tensors makes."""
    made = make(*args, **kwargs)
    COUNTED["operators"] += 1
    return SimulatedTensor(_TAPES[-1].made_by(make, args, kwargs, made) if _TAPES else made)


def _allocated(made: Tensor) -> Tensor:
    return SimulatedTensor(_TAPES[-1].empty(made) if _TAPES else made)


def register() -> torch.device:
    """Have PyTorch know the device. To be called once in a process, before anything is differentiated."""
    _setup_privateuseone_for_python_backend(SIMULATED)
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return _allocated(torch.empty(size, dtype=dtype, device="cpu"))

    def empty_strided(
        size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return _allocated(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        on_host = [each for each in (source, target) if not isinstance(each, SimulatedTensor)]
        if on_host and on_host[0].ndim and not _is_pinned(on_host[0]):
            _read("a copy of pageable memory")
        COUNTED["copies"] += 1
        if _TAPES:
            source = source if isinstance(source, SimulatedTensor) or source.ndim else _TAPES[-1].constant(source)
            _TAPES[-1].copy(_values(source), _values(target))
        else:
            _run_late(len(_LATE))
            _values(target).copy_(_values(source))
        return target

    def arange(
        start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return _made(torch.arange, start, end, step, dtype=dtype, device="cpu")

    library.impl("arange", lambda end, **options: arange(0, end, **options), "PrivateUse1")
    library.impl("arange.start", arange, "PrivateUse1")
    library.impl("arange.start_step", arange, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    # What was registered is forgotten with the library.
    _KEPT.append(library)
    return torch.device(SIMULATED, 0)


_KEPT: list[torch.library.Library] = []
