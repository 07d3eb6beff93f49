"""Whole operators: while a function is traced, calls of PyTorch become the operators that the passes look for.

Linear maps and dropout stay whole; recurrent cells are taken apart; every node gets the user's line. Calls that a program
would leave out are refused: switched modes, hooks of tensors, values that leave PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.traceback import set_stack_trace
from torch.overrides import TorchFunctionMode

from sagann.saga.users_lines import users_line


class NotShown(Exception):  # noqa: N818 - not an error of its own: the tracer turns it into one.
    """The function makes a call that a trace does not show; the message names the call."""


def _modes() -> tuple[object, ...]:
    """Modes that change operators and their backward."""
    autocast = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*autocast, torch.is_inference_mode_enabled(), hooks)


class WholeOperators(TorchFunctionMode):
    """The mode in which a function is traced."""

    def __enter__(self) -> WholeOperators:
        self._modes = _modes()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not all(issubclass(kind, Tensor) for kind in types):
            # A stand-in for a tensor decides for itself what is done with it.
            return func(*args, **(kwargs or {}))
        line = users_line()
        set_stack_trace([line])
        if _modes() != self._modes:
            raise NotShown(f"it switches autocast, inference mode or hooks of saved tensors on or off ({line})")
        if func in _REFUSED:
            raise NotShown(f"{_REFUSED[func]} ({line})")
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    mapped = torch.ops.sagann.linear(input, weight) if weight.ndim == 2 else input @ weight
    return mapped if bias is None else mapped + bias


def _einsum(equation: Any, *operands: Any) -> Tensor:
    """``torch.einsum``; a linear map written as a sum of products becomes one."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    form = (
        re.fullmatch(r"(\w+)(\w),(\w)(\w)->(\w+)(\w)", equation.replace(" ", ""))
        if isinstance(equation, str)
        else None
    )
    if form is not None and len(set("".join(form.group(1, 2, 6)))) == len(form[1]) + 2:
        rows, summed, first, second, kept, new = form.groups()
        if rows == kept and (first, second) in ((summed, new), (new, summed)):
            return _linear(operands[0], operands[1] if first == new else operands[1].t())
    return torch.einsum(equation, *operands)


def _matmul(input: Tensor, other: Tensor, **kwargs: Any) -> Tensor:
    """``torch.matmul``; the product of rows and one matrix becomes a linear map."""
    if input.ndim > 1 and other.ndim == 2 and not kwargs:
        return _linear(input, other.t())
    return torch.matmul(input, other, **kwargs)


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm`` without the in-place operators of PyTorch's decomposition."""
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    square = wide.square().mean(list(range(-len(normalized_shape), 0)), keepdim=True)
    out = wide * torch.rsqrt(square + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (out if weight is None else out * weight).to(input.dtype)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``torch.cosine_similarity`` without the write in place. A norm below ``eps`` counts as ``eps`` and keeps its slope."""
    if not x1.is_floating_point() or not x2.is_floating_point():
        return torch.cosine_similarity(x1, x2, dim, eps)
    x1, x2 = torch.broadcast_tensors(x1, x2)
    norms = [torch.linalg.vector_norm(x, dim=dim, keepdim=True) for x in (x1, x2)]
    first, second = (torch.where(norm < eps, norm + (eps - norm).detach(), norm) for norm in norms)
    return ((x1 / first) * (x2 / second)).sum(dim)


def _cell(gates: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A recurrent cell: ``gates`` gets the maps of input and hidden state, and the hidden state."""

    # Arguments have PyTorch's names.
    def cell(
        input: Tensor,
        hx: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        return gates(_linear(input, w_ih, b_ih), _linear(hx, w_hh, b_hh), hx)

    return cell


def _gru(of_x: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    size = hidden.shape[-1]
    reset = torch.sigmoid(of_x[:, :size] + of_hidden[:, :size])
    update = torch.sigmoid(of_x[:, size : 2 * size] + of_hidden[:, size : 2 * size])
    new = torch.tanh(of_x[:, 2 * size :] + reset * of_hidden[:, 2 * size :])
    return new + update * (hidden - new)


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    both = _linear(input, w_ih, b_ih) + _linear(hidden, w_hh, b_hh)
    keep_new, keep_old, new, out = both.chunk(4, 1)
    cell = torch.sigmoid(keep_old) * cell + torch.sigmoid(keep_new) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    dropped = torch.ops.sagann.dropout(input, float(p))
    return input.copy_(dropped) if inplace else dropped


_DATA: Any = Tensor.data
_REQUIRES_GRAD: Any = Tensor.requires_grad
_REPLACED: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.dropout: _dropout,
    F.rms_norm: _rms_norm,
    torch.cosine_similarity: _cosine_similarity,
    torch.dropout: lambda input, p, train: _dropout(input, p, train),
    torch.einsum: _einsum,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.mm, Tensor.mm), lambda input, mat2, **kwargs: _matmul(input, mat2, **kwargs)),
    # PyTorch's decompositions of the cells ask for a concrete number of rows, or write in place.
    torch.gru_cell: _cell(_gru),
    torch.lstm_cell: _lstm_cell,
    torch.rnn_tanh_cell: _cell(lambda of_x, of_hidden, _: torch.tanh(of_x + of_hidden)),
    torch.rnn_relu_cell: _cell(lambda of_x, of_hidden, _: torch.relu(of_x + of_hidden)),
    # A functional tensor would return itself, with its gradient.
    _DATA.__get__: lambda tensor, *_: tensor.detach(),
}
_ASKS = "it asks whether a tensor gets a gradient, or has it changed by a hook"
_REFUSED: dict[Any, str] = {
    _DATA.__set__: "it sets the data of a tensor",
    torch._C._set_grad_enabled: "it switches gradients off or on",
    # No tensor of a trace gets a gradient.
    _REQUIRES_GRAD.__get__: _ASKS,
    Tensor.register_hook: _ASKS,
    # A trace would contain every step of the sequence.
    **{
        rnn: f"it runs {rnn.__name__} over a sequence"
        for rnn in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
    },
    # A tensor of a trace has no memory to read.
    **{
        read: f"it takes values out of PyTorch by Tensor.{read.__name__}"
        for read in (Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__)
    },
}
