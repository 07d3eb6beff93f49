"""Whole operators: while a function is traced, PyTorch's calls become the operators that passes look for.

Linear maps and dropout stay whole, recurrent cells are taken apart, and the user's lines are noted. What a program would leave out
is refused: modes that the function switches, hooks of tensors, numbers that leave PyTorch.
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

from sagann.saga.independence import users_line


class NotShown(Exception):  # noqa: N818 - not an error of its own: the tracer turns it into one.
    """The function does something that a trace does not show; the message says what."""


# Given a tensor of a trace, they would read memory that is not there.
_READS_VALUES = (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist, torch.Tensor.__dlpack__)


_DATA: Any = Tensor.data
_REQUIRES_GRAD: Any = Tensor.requires_grad
# Nothing of a trace gets one.
_ASKS_FOR_GRADIENTS = (_REQUIRES_GRAD.__get__, Tensor.register_hook)


def _modes() -> tuple[object, ...]:
    """What changes operators and their backward without being one of them."""
    autocast = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (*autocast, torch.is_inference_mode_enabled(), hooks)


class WholeOperators(TorchFunctionMode):
    """The mode that a function is traced in.

    Raises:
        NotShown: the function does what a program would leave out.
    """

    def __enter__(self) -> WholeOperators:
        self._modes = _modes()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        set_stack_trace([users_line()])
        if _modes() != self._modes:
            raise NotShown(
                f"it switches autocast, inference mode or hooks of saved tensors on or off ({users_line()})"
            )
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is torch.einsum:
            return _einsum(*args, **kwargs)
        if func in _MATMULS and _is_map(*args):
            return _linear(args[0], args[1].t())
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _OVER_SEQUENCES:
            raise NotShown(f"it runs {func.__name__} over a sequence ({users_line()})")
        if func in (F.dropout, torch.dropout):
            return (_dropout if func is F.dropout else _torch_dropout)(*args, **kwargs)
        if func in _CELLS:
            return _CELLS[func](*args, **kwargs)
        # Functional tensors would hand on themselves, and their gradients.
        if func == _DATA.__get__:
            return args[0].detach()
        if func == _DATA.__set__:
            raise NotShown("it sets the data of a tensor")
        if func is torch._C._set_grad_enabled:
            raise NotShown(f"it switches gradients off or on ({users_line()})")
        if func in _ASKS_FOR_GRADIENTS:
            raise NotShown(
                f"it asks whether a tensor gets a gradient, or has it changed by a hook ({users_line()})"
            )
        if func in _READS_VALUES:
            raise NotShown(f"it takes values out of PyTorch by Tensor.{func.__name__} ({users_line()})")
        return func(*args, **kwargs)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    mapped = torch.ops.sagann.linear(input, weight) if weight.ndim == 2 else input @ weight
    return mapped if bias is None else mapped + bias


def _einsum(equation: Any, *operands: Any) -> Tensor:
    """A linear map that is written as a sum of products is one."""
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


# One matrix for rows that have several dimensions.
_MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
# A trace would have every step of it.
_OVER_SEQUENCES = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def _is_map(*operands: Any) -> bool:
    return len(operands) == 2 and operands[0].ndim > 2 and operands[1].ndim == 2


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Without the operators in place of PyTorch's decomposition."""
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    square = wide.square().mean(list(range(-len(normalized_shape), 0)), keepdim=True)
    out = wide * torch.rsqrt(square + (torch.finfo(wide.dtype).eps if eps is None else eps))
    return (out if weight is None else out * weight).to(input.dtype)


def _cell(gates: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A recurrent cell: ``gates`` of the maps of input and hidden state, and of the hidden state."""

    # Named as PyTorch's.
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


# PyTorch's own decomposition of these asks for a concrete number of rows, or writes in place.
_CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru_cell: _cell(_gru),
    torch.rnn_tanh_cell: _cell(lambda of_x, of_hidden, _: torch.tanh(of_x + of_hidden)),
    torch.lstm_cell: _lstm_cell,
    torch.rnn_relu_cell: _cell(lambda of_x, of_hidden, _: torch.relu(of_x + of_hidden)),
}


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    dropped = torch.ops.sagann.dropout(input, float(p))
    return input.copy_(dropped) if inplace else dropped


def _torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(input, p, train)
