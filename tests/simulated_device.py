"""A device without hardware, for one process: PyTorch takes it for a device of another type, and the processor computes its numbers.

As on a CUDA device, an operator whose tensors are on different devices is refused, except for a single number of the processor, and a tensor
cannot become an array of NumPy. Other than there, an index on the processor is refused as well: it would be copied in every call.

What the host queues is counted, and can be recorded (:class:`SimulatedStreams`). As in the capture of a CUDA graph nothing is computed
meanwhile: results are poison. Refused is what CUDA refuses: to read a number, to wait, to copy pageable memory, to pin memory, and shapes that depend on
data; lanes that wait for nothing that is recorded, or that nobody waits for at the end. Two operators that no wait orders must not touch the same
memory, one of them writing, nor a lane memory that is free. A recording that is launched runs its operators in an order that the waits allow,
each time another one, on the same storages, of which those that it made itself are poison at first. Of other storages it keeps none alive: one
that was freed is an error. What is not recorded runs in the order in which it was queued.

Registering a device cannot be taken back, so only programs of their own do that.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sagann.kernels.edge import naive
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import PassEdges
from sagann.kernels.seeds import Seed

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


@dataclass(frozen=True)
class _Inside:
    """A tensor in a storage that a recording keeps, to which it has no other reference."""

    kept: Tensor
    form: tuple[Any, ...]
    dtype: torch.dtype

    def found(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype).set_(self.kept.untyped_storage(), *self.form)


class Mark(NamedTuple):
    """How much a lane of a recording had been given, and how much of each lane runs before; without a recording, how much the device had."""

    tape: Tape | None
    lane: str
    count: int
    before: Counter[str]


class _Node(NamedTuple):
    """An operator that was queued, and the tensors that its results go to; none where it works in place."""

    run: Callable[..., Any]
    args: Any
    kwargs: Any
    results: Sequence[Any]
    is_random: bool


_THREAD = threading.local()


def _lane() -> str:
    """The lane in which this thread queues."""
    return getattr(_THREAD, "lane", "compute")


FILLED: set[int] = set()
"Addresses of what copies between devices have filled before a recording is launched."


class Tape:
    """Operators of each lane, in the order in which they were queued, and what they wait for; ``most_bytes`` is the memory for their results."""

    def __init__(self, most_bytes: float, index: int = 0, in_use: list[Tensor] | None = None) -> None:
        self.index = index
        "Number of the device."
        self._lanes: dict[str, list[_Node | Mark]] = {"compute": []}
        self._before: dict[str, Counter[str]] = {"compute": Counter()}
        "By lane, how much of each lane runs before what the lane is given next."
        self.touched: dict[int, dict[tuple[str, int, int, bool], int]] = {}
        "By storage, which operator of a lane was the last to read or write a range of bytes."
        self._most_bytes = most_bytes
        self._made: dict[int, Tensor] = {}
        "Storages that the recording keeps: those that it made, which hold no numbers when it is launched, and constants."
        self._poisoned: list[Tensor] = []
        # Recordings of one device share memory.
        self._in_use: list[Tensor] = [] if in_use is None else in_use
        self.peak_bytes = 0
        "Most bytes of results that were in use at a time."
        self._launches = 0

    def queue(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add an operator; its results, which are poison, or views."""
        schema = func._schema
        by_ids = func is _ATEN.index.Tensor and all(each is None or each.dtype != torch.bool for each in args[1])
        # The host has said how long the result is.
        is_known = by_ids or kwargs.get("output_size") is not None
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags) and not is_known:
            raise NotRecordableError(str(func))
        if _gives_views(func):
            return func(*args, **kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        written = [each.alias_info is not None and each.alias_info.is_write for each in schema.arguments]
        if any(written) and all(each.alias_info is not None for each in schema.returns):
            given = [*args, *(kwargs.get(each.name) for each in schema.arguments[len(args) :])]
            changed = [each for each, is_written in zip(given, written, strict=True) if is_written]
            self._add(func, args, kwargs, [], is_random, changed)
            return changed[0] if schema.returns else None
        return self.made_by(func, args, kwargs, func(*_meta(args), **_meta(kwargs)), is_random=is_random)

    def made_by(
        self,
        run: Callable[..., Any],
        args: Any,
        kwargs: Any,
        like: Any,
        *,
        is_random: bool = False,
        written: Sequence[Tensor] = (),
    ) -> Any:
        """Add an operator whose results are as ``like``, and which writes to some of its arguments."""
        results = pytree.tree_map_only(Tensor, self.empty, like)
        self._add(run, args, kwargs, pytree.tree_leaves(results), is_random, (results, written))
        return results

    def kernel(self, run: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Add a kernel, which writes to its arguments."""
        self._add(run, args, kwargs, [], False, (args, kwargs))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Add a copy from or to pinned memory."""
        self._add(_ATEN.copy_.default, (target, source), {}, [], False, target)

    def empty(self, like: Tensor) -> Tensor:
        """Uninitialised memory, which belongs to the recording."""
        made = _poison(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu"))
        if not made.nbytes:
            return made
        if _lane() != "compute":
            raise NotRecordableError(f"memory of the lane {_lane()}")
        self._in_use[:] = [each for each in self._in_use if not self._is_free(each)]
        self._made[made.untyped_storage().data_ptr()] = made
        for each in (self._poisoned, self._in_use):
            each.append(made)
        in_use_bytes = sum(each.nbytes for each in self._in_use)
        self.peak_bytes = max(self.peak_bytes, in_use_bytes)
        if in_use_bytes > self._most_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a simulated block.")
        # Whoever has it, or a view of it, has another reference to the storage than the recording.
        return made.detach()

    def _is_free(self, made: Tensor) -> bool:
        """Whether memory may be used for something else in the lane that computes; all that touches it must run before."""
        storage = made.untyped_storage()
        if torch._C._storage_Use_Count(storage._cdata) > _OWN_REFERENCES:
            return False
        touched = self.touched.setdefault(storage.data_ptr(), {})
        for (lane, *_), number in touched.items():
            assert self._before["compute"][lane] >= number, f"memory is free that the lane {lane} may use"
        # What is made from now on may lie there.
        touched["compute", 0, storage.nbytes(), True] = 0
        return True

    def constant(self, number: Tensor) -> Tensor:
        """A single number of the processor as it is now."""
        kept = number.clone()
        self._made[kept.untyped_storage().data_ptr()] = kept
        return kept

    def mark(self, lane: str) -> Mark:
        """The point after all that a lane has been given."""
        return Mark(self, lane, len(self._lanes.get(lane, ())), self._before.get(lane, Counter()).copy())

    def wait(self, lane: str, mark: Mark) -> None:
        """Run what the lane is given from now on after a mark of this recording."""
        if mark.tape is not self:
            raise NotRecordableError("a wait for what is not recorded")
        self._lanes.setdefault(lane, []).append(mark)
        before = self._before.get(lane, Counter()) | mark.before
        before[lane] = len(self._lanes[lane])
        self._before[lane] = before

    def end(self) -> None:
        """Refuse a recording that leaves a lane behind."""
        for lane, given in self._lanes.items():
            if self._before["compute"][lane] < len(given):
                raise NotRecordableError(f"nobody waits for the lane {lane}")

    def launch(self) -> None:
        """Run all operators: first with copies as early as they may, then as late, then in random orders."""
        for each in self._poisoned:
            if each.data_ptr() not in FILLED:
                _poison(each)
        self._launches += 1
        numbers, done = random.Random(self._launches), Counter[str]()
        while open_lanes := [lane for lane, given in self._lanes.items() if done[lane] < len(given)]:
            ready = [lane for lane in open_lanes if self._is_ready(lane, done)]
            if self._launches <= 2:
                ready.sort(key=lambda lane: (lane == "compute") == (self._launches == 1))
            lane = ready[0] if self._launches <= 2 else numbers.choice(ready)
            node = self._lanes[lane][done[lane]]
            if isinstance(node, _Node):
                self._run(node)
            done[lane] += 1

    def _is_ready(self, lane: str, done: Counter[str]) -> bool:
        following = self._lanes[lane][done[lane]]
        return isinstance(following, _Node) or done[following.lane] >= following.count

    def _run(self, node: _Node) -> None:
        args, kwargs, results = pytree.tree_map_only(
            (_Outside, _Inside), lambda each: each.found(), (node.args, node.kwargs, node.results)
        )
        with _numbers_of_device() if node.is_random else nullcontext():
            found = node.run(*args, **kwargs)
        for result, value in zip(results, pytree.tree_leaves(found) if results else [], strict=True):
            if isinstance(result, Tensor):
                # Batch norm gives no moments where it evaluates, except for tensors without numbers.
                result.copy_(value) if value.numel() else None

    def _add(self, run: Any, args: Any, kwargs: Any, results: Sequence[Any], is_random: bool, written: Any) -> None:
        lane = _lane()
        if lane not in self._lanes:
            raise NotRecordableError(f"the lane {lane} waits for nothing that is recorded")
        number = self._before[lane][lane] = len(self._lanes[lane]) + 1
        changed = {id(each) for each in pytree.tree_leaves(written)}
        for each in pytree.tree_leaves((args, kwargs, results)):
            if isinstance(each, Tensor) and each.numel():
                self._touch(each, lane, number, writes=id(each) in changed)
        kept = pytree.tree_map_only(Tensor, self._kept, (args, kwargs, list(results)))
        self._lanes[lane].append(_Node(run, *kept, is_random))

    def _touch(self, tensor: Tensor, lane: str, number: int, *, writes: bool) -> None:
        first = tensor.storage_offset() * tensor.itemsize
        spans = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        last = first + (1 + sum(spans)) * tensor.itemsize
        touched = self.touched.setdefault(tensor.untyped_storage().data_ptr(), {})
        for (other, begin, end, wrote), earlier in touched.items():
            assert not (wrote or writes) or end <= first or last <= begin or self._before[lane][other] >= earlier, (
                f"the lanes {other} and {lane} touch the same memory"
            )
        touched[lane, first, last, writes] = number

    def _kept(self, tensor: Tensor) -> Any:
        storage, form = tensor.untyped_storage(), (tensor.storage_offset(), tensor.shape, tensor.stride())
        if not storage.nbytes():
            return tensor
        if storage.data_ptr() in self._made:
            return _Inside(self._made[storage.data_ptr()], form, tensor.dtype)
        return _Outside(StorageWeakRef(storage), form, tensor.dtype)


def _gives_views(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


_OWN_REFERENCES = 2
"References to a storage that only a recording has: its tensor, and whoever asks."


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
    for each in (COUNTED, _TAPES, _LATE, _DEVICE_NUMBERS, _PINNED, SimulatedStreams.tapes, SimulatedStreams.counts):
        each.clear()


def _run_late(count: int | None = None) -> None:
    """Begin the first ``count`` of them, or all."""
    with _LOCK:
        for _ in range(len(_LATE) if count is None else count):
            _LATE.pop(0)()


_LOCK = threading.RLock()
"Threads that read for the device queue copies as well."


def _is_pinned(tensor: Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(each.data_ptr() == address for each in _PINNED) or any(each.is_pinned(tensor) for each in DRIVERS)


DRIVERS: list[Any] = []
"Drivers that pin memory in place."


def _read(what: object) -> None:
    """The host reads from the device."""
    if _TAPES:
        raise NotRecordableError(str(what))
    COUNTED["reads"] += 1
    _run_late()


class SimulatedTensor(Tensor):
    """A tensor on the device; ``values`` are its numbers, on the processor."""

    values: Tensor
    index: int

    @staticmethod
    def __new__(cls, values: Tensor, index: int = 0) -> SimulatedTensor:
        found: SimulatedTensor = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(SIMULATED, 0),
        )
        found.values, found.index = values, index
        return found

    def __init__(self, values: Tensor, index: int = 0) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        # PyTorch itself knows one device of this type.
        return torch.device(SIMULATED, self.index)

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def set_(self, *given: Any) -> SimulatedTensor:  # type: ignore[override]
        return SimulatedTensor(self.values.set_(*given), self.index)

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulatedTensor:
        copied = memo[id(self)] = SimulatedTensor(self.values.clone(), self.index).requires_grad_(
            self.requires_grad
        )
        vars(copied).update({name: value for name, value in vars(self).items() if name not in ("values", "index")})
        return copied

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
        if func is _ATEN.copy_.default and any(copy(*args) for copy in COPIES):
            return args[0]
        if func is _ATEN.empty_like.default and torch.device(kwargs.get("device") or "cpu").type == SIMULATED:
            return _allocated(torch.empty_like(_values(args[0])), torch.device(kwargs["device"]))
        indices = {each.index for each in given if isinstance(each, cls)}
        if func is _COPIES[1] and not _TAPES and torch.device(kwargs.get("device") or "cpu").type == SIMULATED:
            indices = {torch.device(kwargs["device"]).index or 0}
        index = min(indices, default=0)
        to = torch.device(kwargs.get("device") or "cpu")
        if len(indices) > 1 or (to.type == SIMULATED and to.index not in (None, 0, index)):
            raise (NotRecordableError if _TAPES else RuntimeError)(f"{func} of several devices")
        if _TAPES and index != _TAPES[-1].index and not _gives_views(func):
            raise NotRecordableError(f"{func} of another device")
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
            _run_late()
            random = torch.Tag.nondeterministic_seeded in func.tags
            with _numbers_of_device() if random else nullcontext():
                result = func(*pytree.tree_map(_values, args), **pytree.tree_map(_values, kwargs))
        # An operator in place gives the tensor that it was given.
        known = {id(_values(each)): each for each in given}

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor) or to_processor:
                return value
            return known.get(id(value)) if id(value) in known else cls(value, index)

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
    """What recordings and streamed epochs ask of CUDA. The device begins copies and launches as late as it may."""

    most_bytes = float("inf")
    "Memory for the results of a recording."
    on_launch: Callable[[], None] = staticmethod(lambda: None)
    "Called when the device launches a recording."
    tapes: ClassVar[list[Tape]] = []
    "What was recorded."
    counts: ClassVar[Counter[str]] = Counter()
    "How many copies and launches the device was 'given', and has 'done'."

    fragments = 1.0
    "Memory that a recording reserves, in times of what it uses."

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reserved_bytes = 0

    @property
    def recording(self) -> Tape | None:
        return _TAPES[-1] if _TAPES else None

    @contextmanager
    def queue(self) -> Iterator[None]:
        yield

    @contextmanager
    def on(self, lane: str) -> Iterator[None]:
        before, _THREAD.lane = _lane(), lane
        try:
            yield
        finally:
            _THREAD.lane = before

    def empty(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def hand_over(self, tensor: Tensor) -> None:
        if _TAPES:
            raise NotRecordableError("memory that is free only after the recording")

    def pinned(self, num_bytes: int) -> Tensor:
        if _TAPES:
            raise NotRecordableError("cudaHostRegister")
        _PINNED.append(torch.full((num_bytes,), 0xFF, dtype=torch.uint8))
        return _PINNED[-1]

    def is_pinned(self, tensor: Tensor) -> bool:
        return _is_pinned(tensor)

    def copy(self, into: Tensor, source: Tensor) -> None:
        is_read = not isinstance(into, SimulatedTensor)
        assert _is_pinned(into if is_read else source)
        if _TAPES:
            _TAPES[-1].copy(_values(source), _values(into))
            return
        COUNTED["late reads" if is_read else "copies"] += 1
        self._late(lambda: _values(into).copy_(_values(source)))

    def mark(self, lane: str) -> Mark:
        return _TAPES[-1].mark(lane) if _TAPES else Mark(None, lane, self.counts["given"], Counter())

    def wait(self, lane: str, mark: Mark) -> None:
        if _TAPES:
            _TAPES[-1].wait(lane, mark)

    def finish(self, mark: Mark) -> None:
        if _TAPES:
            raise NotRecordableError("cudaEventSynchronize")
        assert mark.tape is None, "a mark of a recording is never passed"
        with _LOCK:
            _run_late(max(0, mark.count - self.counts["done"]))

    def finish_copies(self) -> None:
        for lane in ("load", "store"):
            if not _TAPES:
                self.finish(self.mark(lane))
            elif (mark := self.mark(lane)).count:
                self.wait("compute", mark)

    def is_passed(self, mark: Mark) -> bool:
        if _TAPES:
            raise NotRecordableError("cudaEventQuery")
        return self.counts["done"] >= mark.count

    def seconds(self, first: Mark, last: Mark) -> float:
        return 0.0

    def release(self) -> None:
        assert not _TAPES

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if "no graphs" in FAULTS:
            raise RuntimeError("CUDA error: operation not supported")
        tape = Tape(self.most_bytes)
        _run_late()
        _TAPES.append(tape)
        try:
            try:
                work()
            finally:
                # Work that fails ends its recording as well, unless the interpreter itself has found it wrong.
                if not isinstance(sys.exception(), AssertionError):
                    tape.end()
        finally:
            _TAPES.pop()
        self.tapes.append(tape)
        self.reserved_bytes += int(self.fragments * tape.peak_bytes)

        def launch() -> None:
            COUNTED["launches"] += 1
            self._late(lambda: (self.on_launch(), tape.launch()))

        return launch

    def _late(self, work: Callable[[], object]) -> None:
        def done() -> None:
            work()
            self.counts["done"] += 1

        with _LOCK:
            self.counts["given"] += 1
            _LATE.append(done)


class Kernels:
    """A dialect of edge functions whose passes are one kernel each, which the naive dialect computes on the processor."""

    @staticmethod
    def run(
        function: EdgeFunction,
        edges: PassEdges,
        arrays: Mapping[str, Tensor],
        *,
        seed: Seed = 0,
        into: Sequence[Tensor] = (),
        edge_offset: int = 0,
    ) -> tuple[Tensor, ...]:
        """See :func:`sagann.kernels.edge.naive.run`; here a pass always continues, over a chunk."""

        # The recording must not hold tensors but those that it is given.
        at, num_others, data = edges.at, edges.num_others, edges.edge_data.items()
        data_of = {name: key for name, array in arrays.items() for key, rows in data if rows is array}

        def kernel(given: dict[str, Any]) -> list[Tensor]:
            here = PassEdges(at=at, num_others=num_others, **given["edges"])
            read = given["arrays"] | {name: here.edge_data[key] for name, key in data_of.items()}
            rest = {"seed": given["seed"], "into": given["into"], "edge_offset": edge_offset}
            found = naive.run(function, here, read, **rest)
            return [rows for rows, form in zip(found, function.results, strict=True) if form.rows == "edge"]

        fields = {name: getattr(edges, name) for name in ("indptr", "indices", "edge_ids", "edge_data")}
        index = next(each.index for each in pytree.tree_leaves(fields) if isinstance(each, SimulatedTensor))
        assert not _TAPES or index == _TAPES[-1].index
        given = {"edges": fields, "arrays": dict(arrays), "seed": seed, "into": list(into)}
        given = pytree.tree_map_only(Tensor, lambda each: _values(each.detach()), given)
        COUNTED["operators"] += 1
        if _TAPES:
            forms = [form for form in function.results if form.rows == "edge"]
            like = [
                torch.empty((edges.num_edges, *form.shape), dtype=form.dtype or edges.id_dtype) for form in forms
            ]
            made = _TAPES[-1].made_by(kernel, (given,), {}, like, written=given["into"])
        else:
            _run_late()
            made = kernel(given)
        results, rows = iter(into), iter([SimulatedTensor(each, index) for each in made])
        return tuple(next(rows if form.rows == "edge" else results) for form in function.results)


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
            _run_late()
            run(executor, *args, **kwargs)

    GridExecutor.__call__ = queued


COPIES: list[Callable[..., bool]] = []
"Called with the arguments of each copy; gives whether it was queued."
FAULTS: set[str] = set()
"What the driver lacks."


def _made(make: Callable[..., Tensor], where: torch.device | None, *args: Any, **kwargs: Any) -> Tensor:
    """A tensor that an operator without tensors makes."""
    made, index = make(*args, **kwargs), _index_of(where)
    COUNTED["operators"] += 1
    if _TAPES and _TAPES[-1].index != index:
        raise NotRecordableError(f"{make} of another device")
    return SimulatedTensor(_TAPES[-1].made_by(make, args, kwargs, made) if _TAPES else made, index)


def current_index() -> int:
    """Number of the current device."""
    return 0


def _index_of(device: torch.device | None) -> int:
    # PyTorch asks for its one device of this type where it means the current one.
    return (device.index if device is not None else 0) or current_index()


def _allocated(made: Tensor, device: torch.device | None = None) -> Tensor:
    index = _index_of(device)
    # Memory of a device of which nothing is recorded at the moment comes from elsewhere.
    return SimulatedTensor(_TAPES[-1].empty(made) if _TAPES and _TAPES[-1].index == index else made, index)


def register() -> torch.device:
    """Have PyTorch know the device. To be called once in a process, before anything is differentiated."""
    _setup_privateuseone_for_python_backend(SIMULATED)
    # A streamed backward runs outside of autocast.
    torch.get_device_module(SIMULATED).get_amp_supported_dtype = lambda: [torch.float16]
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return _allocated(torch.empty(size, dtype=dtype, device="cpu"), options.get("device"))

    def empty_strided(
        size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return _allocated(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), options.get("device"))

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        on_host = [each for each in (source, target) if not isinstance(each, SimulatedTensor)]
        if on_host and on_host[0].ndim and not _is_pinned(on_host[0]):
            _read("a copy of pageable memory")
        COUNTED["copies"] += 1
        if _TAPES:
            source = source if isinstance(source, SimulatedTensor) or source.ndim else _TAPES[-1].constant(source)
            _TAPES[-1].copy(_values(source), _values(target))
        else:
            _run_late()
            _values(target).copy_(_values(source))
        return target

    def arange(
        start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return _made(torch.arange, options.get("device"), start, end, step, dtype=dtype, device="cpu")

    def gru_cell(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None) -> Tensor:
        (of_x, of_h) = (F.linear(*each).chunk(3, 1) for each in ((x, w_x, b_x), (h, w_h, b_h)))
        reset, update = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
        new = torch.tanh(of_x[2] + reset * of_h[2])
        return (h - new) * update + new

    # A CUDA device has a kernel for that.
    library.impl("gru_cell", gru_cell, "AutogradPrivateUse1")
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
