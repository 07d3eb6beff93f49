"""Widths: an operation that is given rows of another width than it takes is named, with what it was given and what to change.

PyTorch's own error has shapes without names. Here a mode sees every call as the user wrote it, and explains one that fails because of its widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sagann.errors import WidthError
from sagann.saga.users_lines import users_line

_CELLS = {
    torch.gru_cell: "nn.GRUCell",
    torch.lstm_cell: "nn.LSTMCell",
    torch.rnn_tanh_cell: "nn.RNNCell",
    torch.rnn_relu_cell: "nn.RNNCell",
}
_PRODUCTS = ("matmul", "mm")
_SUMS = ("add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum")
_ELEMENTWISE = frozenset(start + name for start in ("", "r", "i") for name in _SUMS)
"Names without the underscores that stand around them, as in ``__radd__`` and ``add_``."

_OF_CELL = "Give the cell rows, and a hidden state, of the widths that it is made for."
_OF_MAP = (
    "F.linear(x, w), as nn.Linear(in, out), takes rows x [N, in], and w as [out, in]; x @ w takes rows x [N, in] first, then w as [in, out]. "
    "Rows are multiplied by rows as (a * b).sum(-1)."
)


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
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            given = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, (Tensor, tuple, list))]
            operation, hint = _operation(func, given)
            if not operation:
                raise
        # Outside of the clause: PyTorch's error says nothing that is not in this one.
        operands = [each[0] if isinstance(each, (tuple, list)) else each for each in given]
        shown = ", ".join(map(self._shown, operands[: 3 if func in _CELLS else 2]))
        raise WidthError(f"widths do not fit: {operation} of {shown} (in {self._where}, {users_line()})", hint=hint)

    def _shown(self, tensor: Tensor) -> str:
        """Name and shape, with N for the number of rows."""
        known = (*self._module.named_parameters(), *self._module.named_buffers())
        name = next((f"'{name}' " for name, each in known if each is tensor), "")
        first = "N" if not name and tensor.shape[0] == self._num_rows else str(tensor.shape[0])
        return f"{name}[{', '.join([first, *map(str, tensor.shape[1:])])}]"


def _operation(func: Callable[..., Any], given: list[Any]) -> tuple[str, str]:
    """The operation that failed because of its operands' widths, and what to change; nothing for another failure."""
    name = getattr(func, "__name__", "").strip("_")
    if func in _CELLS:
        x, hidden, *weights = given[:4]
        hidden = hidden[0] if isinstance(hidden, (tuple, list)) else hidden
        fits = all(a.shape[-1] == b.shape[-1] for a, b in zip((x, hidden), weights, strict=False))
        return ("", "") if fits else (_CELLS[func], _OF_CELL)
    if len(given) < 2 or not all(isinstance(each, Tensor) and each.ndim > 0 for each in given[:2]):
        return "", ""
    a, b = given[:2]
    if func is F.linear and a.shape[-1] != b.shape[-1]:
        return "F.linear(x, w)", _OF_MAP
    if name in _PRODUCTS and a.shape[-1] != b.shape[max(-2, -b.ndim)]:
        return "x @ w", _OF_MAP
    if name in _ELEMENTWISE and a.shape[-1] != b.shape[-1] and 1 not in (a.shape[-1], b.shape[-1]):
        return f"operator {name}", "Give both the same width, or one of them width 1."
    return "", ""
