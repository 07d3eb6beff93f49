"""Widths: an operation that is given rows of another width than it takes is named, with both widths and what to change.

PyTorch's own error has shapes without names, and ``F.linear(x, w)``, ``x @ w`` and ``w @ x`` look alike in it. Here a mode sees
every call as the user wrote it, and explains one that fails because of its widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sagann.errors import WidthError
from sagann.saga.users_lines import users_line

_MATMUL = frozenset(["matmul", "__matmul__", "__rmatmul__", "mm"])
_CELLS = {
    torch.gru_cell: "GRUCell",
    torch.lstm_cell: "LSTMCell",
    torch.rnn_tanh_cell: "RNNCell",
    torch.rnn_relu_cell: "RNNCell",
}
_PLAIN = ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum")
_ELEMENTWISE = frozenset(start + name for start in ("", "r", "i") for name in _PLAIN)
"Names without the underscores that stand around them, as in ``__radd__`` and ``add_``."


class Misfit(NamedTuple):
    """Widths that do not fit, for a message."""

    message: str
    "Which widths do not fit, the operation, and the shapes that it was given."
    hint: str
    "The remedy, as a sentence."


class Widths(TorchFunctionMode):
    """The mode in which functions of a layer or a model run while they are checked.

    Args:
        where: what runs, for messages.
        module: its parameters and buffers have their names in messages.
        num_rows: number of rows of this run, which messages call N.

    Raises:
        WidthError: an operation failed because of the widths that it was given.
    """

    def __init__(self, where: str, module: nn.Module, num_rows: int) -> None:
        super().__init__()
        self._where, self._module, self._num_rows = where, module, num_rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception:
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, (Tensor, tuple, list))]
            misfit = self._misfit(func, given)
            if misfit is None:
                raise
        # Outside of the clause: PyTorch's error says nothing that is not in this one.
        raise WidthError(f"{misfit.message} (in {self._where}, {users_line()})", hint=misfit.hint)

    def _misfit(self, func: Callable[..., Any], given: list[Any]) -> Misfit | None:
        name = getattr(func, "__name__", "")
        if func in _CELLS:
            return self._of_cell(_CELLS[func], *given[:4])
        if len(given) < 2 or not all(isinstance(each, Tensor) and each.ndim > 0 for each in given[:2]):
            return None
        first, second = given[:2]
        if func is F.linear:
            return self._of_linear(first, second)
        if name in _MATMUL:
            return self._of_product(*((second, first) if name == "__rmatmul__" else (first, second)))
        return self._of_elementwise(name, first, second) if name.strip("_") in _ELEMENTWISE else None

    def _of_linear(self, x: Tensor, w: Tensor) -> Misfit | None:
        width, takes = x.shape[-1], w.shape[-1]
        if width == takes:
            return None
        if w.shape[0] == width:
            hint = "F.linear takes w as [out, in], and this one is [in, out]: write x @ w."
        else:
            out = w.shape[0]
            hint = f"Give it rows of width {takes}, or make w [{out}, {width}], as that of nn.Linear({width}, {out}) is."
        return self._of_map("F.linear(x, w)", x, w, takes, hint)

    def _of_product(self, a: Tensor, b: Tensor) -> Misfit | None:
        inner = b.shape[0] if b.ndim == 1 else b.shape[-2]
        if a.shape[-1] == inner:
            return None
        if self._is_rows(a) and self._is_rows(b):
            hint = "Multiply row by row, as (a * b).sum(-1) does."
            return Misfit(f"rows are multiplied by rows: a @ b: a is {self._shown(a)}, b is {self._shown(b)}", hint)
        if self._is_rows(b):
            return self._of_reverse(b, a)
        width = a.shape[-1]
        if b.shape[-1] == width:
            hint = "x @ w takes w as [in, out], and this one is [out, in]: write F.linear(x, w)."
        else:
            hint = f"Give it rows of width {inner}, or make w {[width, *b.shape[1:]]}."
        return self._of_map("x @ w", a, b, inner, hint)

    def _of_reverse(self, x: Tensor, w: Tensor) -> Misfit:
        """``w @ x``, whose sum would run over the rows."""
        width = x.shape[-1]
        if w.shape[0] == width:
            hint = "Write x @ w."
        elif w.shape[-1] == width:
            hint = "Write F.linear(x, w)."
        else:
            hint = f"Write x @ w with w [{width}, out], or F.linear(x, w) with w [out, {width}]."
        return Misfit(
            f"rows of width {width} stand on the wrong side of a product: "
            f"w @ x: w is {self._shown(w)}, x is {self._shown(x)}, and the sum would run over the rows",
            hint,
        )

    def _of_map(self, operation: str, x: Tensor, w: Tensor, takes: int, hint: str) -> Misfit:
        return Misfit(
            f"rows of width {x.shape[-1]} meet a linear map of width {takes}: "
            f"{operation}: x is {self._shown(x)}, w is {self._shown(w)}",
            hint,
        )

    def _of_cell(self, cell: str, x: Tensor, hidden: Any, *weights: Tensor) -> Misfit | None:
        rows = {"input": x, "hidden state": hidden[0] if isinstance(hidden, (tuple, list)) else hidden}
        for (what, each), weight in zip(rows.items(), weights, strict=False):
            width, takes = each.shape[-1], weight.shape[-1]
            if width != takes:
                return Misfit(
                    f"rows of width {width} meet a cell that takes {takes}: "
                    f"nn.{cell}: the {what} is {self._shown(each)}, its weight {self._shown(weight)}",
                    f"Make its width {takes}, or the cell for {width}.",
                )
        return None

    def _of_elementwise(self, name: str, a: Tensor, b: Tensor) -> Misfit | None:
        widths = (a.shape[-1], b.shape[-1])
        if widths[0] == widths[1] or 1 in widths:
            return None
        return Misfit(
            f"rows of width {widths[0]} meet rows of width {widths[1]}: "
            f"operator {name.strip('_')}: one is {self._shown(a)}, the other {self._shown(b)}",
            "Give both the same width, or one of them width 1.",
        )

    def _is_rows(self, tensor: Tensor) -> bool:
        return tensor.shape[0] == self._num_rows and not self._name(tensor)

    def _shown(self, tensor: Tensor) -> str:
        """Name and shape, with N for the number of rows."""
        sizes = ["N" if self._is_rows(tensor) else str(tensor.shape[0]), *map(str, tensor.shape[1:])]
        name = self._name(tensor)
        return f"'{name}' [{', '.join(sizes)}]" if name else f"[{', '.join(sizes)}]"

    def _name(self, tensor: Tensor) -> str:
        """The name of a parameter or buffer; empty for any other tensor."""
        known = (*self._module.named_parameters(), *self._module.named_buffers())
        return next((name for name, each in known if each is tensor), "")
