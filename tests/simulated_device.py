"""A device without hardware, for one process: PyTorch takes it for a device of another type, and the processor computes its numbers.

As on a CUDA device, an operator whose tensors are on different devices is refused, except for a single number of the processor, and a tensor
cannot become an array of NumPy. Other than there, an index on the processor is refused as well: it would be copied in every call.

Registering a device cannot be taken back, so only programs of their own do that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

SIMULATED = "simulated"
"Type of the device, as in torch.device(SIMULATED, 0)."
_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


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

    def tolist(self) -> Any:
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
        result = func(*pytree.tree_map(_values, args), **pytree.tree_map(_values, kwargs))
        # An operator in place gives the tensor that it was given.
        known = {id(_values(each)): each for each in given}

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor) or to_processor:
                return value
            return known.get(id(value)) if id(value) in known else cls(value)

        return pytree.tree_map(placed, result)


def _values(value: Any) -> Any:
    return value.values if isinstance(value, SimulatedTensor) else value


def register() -> torch.device:
    """Have PyTorch know the device. To be called once in a process, before anything is differentiated."""
    _setup_privateuseone_for_python_backend(SIMULATED)
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return SimulatedTensor(torch.empty(size, dtype=dtype, device="cpu"))

    def empty_strided(
        size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return SimulatedTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        _values(target).copy_(_values(source))
        return target

    def arange(
        start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None, **options: Any
    ) -> Tensor:
        return SimulatedTensor(torch.arange(start, end, step, dtype=dtype, device="cpu"))

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
