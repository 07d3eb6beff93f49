"""What a thread of the host queues on a simulated device, and how often it waits.

The device's tensors are those of the processor, so the host's are told from them by their memory: what the caller names, pinned memory, and what was
read from the device. Operators of these alone are the host's own work. All others count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

from sagann.kernels.row_gather import gpu
from sagann.runtime.device.streams import PinnedPool
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateStreams

# Operators whose result, or its size, the host reads.
_READERS = {"_local_scalar_dense", "bincount", "equal", "masked_select", "nonzero", "repeat_interleave", "_unique2"}
# Memory alone, and numbers of the host.
_FREE = "empty", "new_empty", "scalar_tensor"
# Checks of what a caller passes, on the host.
_CHECKS = (
    "sagann.runtime.tiered.device_features.require_ids",
    "sagann.runtime.tiered.device_sampler.require_distinct",
)
_GATHERS = "sagann.runtime.tiered.device_features", "sagann.runtime.tiered.device_topology"


class HostCalls(TorchDispatchMode):
    """Counts of one thread."""

    def __init__(self, of_host: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.queued: Counter[str] = Counter()
        "Operators that run on the device, by name, and launches of kernels."
        self.waits: Counter[str] = Counter()
        "What makes the host wait for the device, by name."
        self._of_host = {_memory(each) for each in of_host}
        self._kept: list[Tensor] = []

    def is_of_host(self, tensors: list[Tensor]) -> bool:
        return bool(tensors) and all(_memory(each) in self._of_host for each in tensors)

    def note(self, found: Any) -> None:
        """Tensors of the host."""
        for each in pytree.tree_leaves(found):
            if isinstance(each, Tensor):
                self._of_host.add(_memory(each))
                # So that an address means one thing.
                self._kept.append(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        name = func.overloadpacket.__name__
        if self.is_of_host(tensors):
            self.note(found)
        elif (name in _READERS and kwargs.get("output_size") is None) or _is_by_mask(name, args):
            self.waits[name] += 1
        elif not name.startswith(_FREE) and not _is_view(func):
            self.queued[name] += 1
        return found


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_view(func: Any) -> bool:
    return any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)


def _is_by_mask(name: str, args: Any) -> bool:
    indices = pytree.tree_leaves(args[1:]) if name.startswith("index") else []
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)


@contextmanager
def counted(*of_host: Tensor) -> Iterator[HostCalls]:
    """Counts of the calls inside the ``with`` block; a copy from or to pageable memory counts as a wait. ``of_host`` are tensors of the host."""
    calls, places = HostCalls(of_host), ExitStack()
    to, cpu = Tensor.to, Tensor.cpu

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if any(isinstance(each, torch.device | str) for each in (*args, *kwargs.values())):
            calls.waits["pageable copy"] += 1
        return to(tensor, *args, **kwargs)

    def brought(tensor: Tensor) -> Tensor:
        if not calls.is_of_host([tensor]):
            calls.waits["pageable copy"] += 1
        return cpu(tensor)

    def put(place: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        places.enter_context(patch.object(place, name, wrapped(getattr(place, name))))

    def alone(made: Callable[..., Any]) -> Callable[..., Any]:
        """Without counts of what the simulation itself does."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes(), patch.object(Tensor, "to", to), patch.object(Tensor, "cpu", cpu):
                return made(*args, **kwargs)

        return run

    def noted(made: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            found = made(*args, **kwargs)
            calls.note(found)
            return found

        return run

    def named(kind: Counter[str], name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapped(made: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                kind[name] += 1
                return made(*args, **kwargs)

            return run

        return wrapped

    with places:
        put(Tensor, "to", lambda _: moved)
        put(Tensor, "cpu", lambda _: brought)
        put(GridExecutor, "__call__", lambda made: named(calls.queued, "launch")(alone(made)))
        put(LateStreams, "finish", named(calls.waits, "mark"))
        for place in (LateStreams, SimulatedDevices):
            put(place, "empty", alone)
        put(LateStreams, "pinned", alone)
        for name in ("take", "read"):
            put(PinnedPool, name, noted)
        for check in _CHECKS:
            places.enter_context(patch(check))
        for module in _GATHERS:
            # The plain twin is many operators.
            places.enter_context(patch(f"{module}.gather_rows", gpu.gather_rows))
        places.enter_context(calls)
        yield calls
