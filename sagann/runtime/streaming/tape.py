"""Tape: the autograd graph of a stage, without its tensors, so that these can be moved until the gradient is computed.

PyTorch's graph of a stage holds tensors. Here the graph holds handles: handles of inputs, which are read again, and handles of
tensors that the stage made, which form one block that is stored, loaded and dropped like any other.

References:
    Jia et al., ROC, MLSys 2020, Sec. 5 moves intermediates between memories; PyTorch's hooks for saved tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks


@dataclass(frozen=True, slots=True)
class _Handle:
    """A tensor as a part of another one."""

    of_input: bool
    name: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Tape:
    """The graph of one run of a stage, without its tensors.

    Args:
        inputs: inputs of the stage with a row per vertex; they are given again when the gradient is computed.
        shared: the other inputs, which stay in memory.

    Example:
        >>> x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]], requires_grad=True)
        >>> tape = Tape({"x": x}, [w])
        >>> with tape.recording():
        ...     entered = tape.enter(x)
        ...     h = torch.exp(entered @ w)
        >>> tape.leave({"x": entered, "w": w}, {"h": h})
        >>> made = dict(tape.made)
        >>> tape.forget()
        >>> grads = tape.gradients({"x": x}, made, {"h": torch.ones(2, 1)})
        >>> torch.allclose(grads["w"], (x * torch.exp(x * 3)).sum().reshape(1, 1))
        True
    """

    def __init__(self, inputs: Mapping[str, Tensor], shared: Iterable[Tensor]) -> None:
        self._record = _Record(inputs, shared)
        self._from: dict[str, GradientEdge] = {}
        self._to: dict[str, GradientEdge] = {}
        # By name of a tensor that was made, the name of the result in whose memory it lies.
        self._results: dict[str, str] = {}
        self._anchor = torch.zeros((), requires_grad=True)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside the ``with`` block, autograd saves handles instead of tensors."""
        with torch.enable_grad(), saved_tensors_hooks(self._record.pack, self._record.unpack):
            yield

    @property
    def made(self) -> dict[str, Tensor]:
        """The tensors that the stage made and its gradient reads, by name."""
        return self._record.made

    def enter(self, value: Tensor) -> Tensor:
        """The value as an input of the stage that gets a gradient."""
        entered: Tensor = _Entry.apply(self._anchor, value)  # type: ignore[no-untyped-call]
        return entered

    def leave(self, inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> None:
        """Note the edges of the autograd graph at the inputs and the results of the stage."""
        self._to = {name: get_gradient_edge(value) for name, value in inputs.items() if value.requires_grad}
        self._from = {name: get_gradient_edge(value) for name, value in results.items() if value.requires_grad}

    @property
    def left_out(self) -> Sequence[str]:
        """Names of the results that must be given with the inputs."""
        return list(self._results.values())

    def leave_out(self, results: Mapping[str, Tensor]) -> None:
        """Leave results out of what the stage made; they are given with the inputs when the gradient is computed."""
        for name, result in results.items():
            made = self._record.name_of(result)
            if made is not None and result.is_contiguous() and self.made[made].nbytes == result.nbytes:
                self._results[made] = name
                del self.made[made]

    def forget(self) -> None:
        """Forget the tensors that the stage made."""
        self._record.forget()

    def leads_from(self, name: str) -> bool:
        """Whether a gradient leads from a result to an input."""
        return name in self._from

    def gradients(
        self, inputs: Mapping[str, Tensor], made: Mapping[str, Tensor], upstream: Mapping[str, Tensor]
    ) -> dict[str, Tensor | None]:
        """The gradients of the stage's inputs, by name, from those of its results; only once."""
        given = {made: inputs[name] for made, name in self._results.items()}
        self._record.given, self._record.made = inputs, {**made, **given}
        known = {name: grad for name, grad in upstream.items() if name in self._from}
        found: Sequence[Tensor | None] = [None] * len(self._to)
        if known and self._to:
            found = torch.autograd.grad(
                [self._from[name] for name in known],
                list(self._to.values()),
                list(known.values()),
                allow_unused=True,
            )
        self._record.given = {}
        self.forget()
        return dict(zip(self._to, found, strict=True))


class _Record:
    """The part of a tape that PyTorch's graph holds. The graph must not hold the tape, which holds the graph: a cycle is never freed."""

    def __init__(self, inputs: Mapping[str, Tensor], shared: Iterable[Tensor]) -> None:
        self._inputs = {
            _address(value): (name, _begin(value)) for name, value in inputs.items() if isinstance(value, Tensor)
        }
        self._shared = {_address(value) for value in shared}
        self._names: dict[int, str] = {}
        self.made: dict[str, Tensor] = {}
        self.given: Mapping[str, Tensor] = {}

    def forget(self) -> None:
        """Forget the tensors that the stage made."""
        self.made = {}
        self._names.clear()

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of the tensor in whose memory another one lies; None for memory that the stage did not make."""
        return self._names.get(_address(tensor))

    def pack(self, tensor: Tensor) -> Tensor | _Handle:
        """The object that autograd saves instead of a tensor."""
        # A tensor is restored from storage, shape and strides, which show neither conjugation nor negation.
        tensor = tensor.resolve_conj().resolve_neg()
        value, address = tensor.detach(), _address(tensor)
        if not value.numel() or not value.ndim or address in self._shared:
            return value
        if address in self._inputs:
            name, begin = self._inputs[address]
            return _handle(value, name, begin, of_input=True)
        if address not in self._names:
            self._names[address] = name = str(len(self._names))
            length = value.untyped_storage().nbytes() // value.itemsize
            self.made[name] = value.as_strided((length,), (1,), 0)
        return _handle(value, self._names[address], 0, of_input=False)

    def unpack(self, packed: Tensor | _Handle) -> Tensor:
        """The tensor of a saved object."""
        if isinstance(packed, Tensor):
            return packed
        base = (self.given if packed.of_input else self.made)[packed.name]
        offset = _begin(base) // packed.dtype.itemsize + packed.offset
        if base.dtype == packed.dtype:
            return base.as_strided(packed.size, packed.stride, offset)
        again = torch.empty(0, dtype=packed.dtype, device=base.device)
        return again.set_(base.untyped_storage(), offset, packed.size, packed.stride)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _begin(tensor: Tensor) -> int:
    """The tensor's first byte in its storage: a saved view may have another type."""
    return int(tensor.storage_offset()) * tensor.itemsize


def _handle(value: Tensor, name: str, begin: int, *, of_input: bool) -> _Handle:
    return _Handle(
        of_input=of_input,
        name=name,
        dtype=value.dtype,
        size=tuple(value.shape),
        stride=value.stride(),
        offset=(_begin(value) - begin) // value.itemsize,
    )


class _Entry(torch.autograd.Function):
    """Makes a value get a gradient, without a leaf that would hold the value."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None
