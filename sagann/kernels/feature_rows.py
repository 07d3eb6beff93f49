"""FeatureRows: features for a linear map, which reads sparse rows as they lie and drops dense rows while it reads them.

Most layers begin with a linear map of the features. A map of sparse rows costs their non-zeros. Dropout of dense rows needs no
tensor of the features' size: a slab of rows that fits the caches is dropped and multiplied, and the gradient of the weight
drops the slab again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph.rows import csr_slice, csr_tensor, dense_rows
from sagann.kernels.dense import block_rows, multiply
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.memory import empty
from sagann.kernels.row_dropout import Mask, drawn_mask, drop, dropped, first_value
from sagann.kernels.sparse_linear import dropped_values, sparse_linear


class FeatureRows:
    """Rows of features that get no gradient: [rows, F], with the shape, type and device of a tensor.

    ``mask`` has the values that dropout keeps, or the non-zeros of sparse rows. ``first`` is the id of the first row; of sparse rows, of the first
    non-zero.
    """

    __slots__ = ("first", "mask", "rows")

    def __init__(self, rows: Tensor, *, mask: Mask | None = None, first: int = 0) -> None:
        self.rows, self.mask, self.first = rows, mask, first

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are ``torch.sparse_csr``."""
        return self.rows.layout == torch.sparse_csr

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def ndim(self) -> int:
        return self.rows.ndim

    @property
    def requires_grad(self) -> bool:
        """False: feature rows get no gradient."""
        return False

    @property
    def form(self) -> Tensor:
        """A dense tensor without rows, of the features' width, type and device."""
        return torch.empty((0, self.shape[1]), dtype=self.dtype, device=self.device)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> FeatureRows:
        """The first rows: ``rows[:n]``."""
        assert not rows.start
        if not self.is_sparse:
            return FeatureRows(self.rows[rows], mask=self.mask, first=self.first)
        return FeatureRows(csr_slice(self.rows, 0, rows.stop), mask=self.mask, first=self.first)

    @classmethod
    def of_interval(cls, rows: Tensor, vertices: slice) -> FeatureRows:
        """The sparse rows of an interval of vertices. Their non-zeros keep their ids."""
        return cls(csr_slice(rows, vertices.start, vertices.stop), first=int(rows.crow_indices()[vertices.start]))

    def dropped(self, p: float, number: int = 0) -> FeatureRows:
        """The same rows under dropout; see :func:`sagann.kernels.row_dropout.dropout`."""
        if self.mask is not None:
            return FeatureRows(self.dense()).dropped(p, number)
        drawn = drawn_mask(len(self), p, number)
        if self.is_sparse:
            drawn = Mask(p=p, seed=drawn.seed, first=self.first + first_value())
        return FeatureRows(self.rows, mask=drawn, first=self.first)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``torch.nn.functional.linear`` of the rows: [rows, F']."""
        if self.is_sparse:
            return sparse_linear(self.rows, weight, bias, self.mask)
        if self.mask is None or self.mask.p == 1.0 or self.dtype != weight.dtype:
            return F.linear(self.dense(), weight, bias)
        out: Tensor = _DroppedLinear.apply(weight, bias, self.rows, self.mask)  # type: ignore[no-untyped-call]
        return out

    def dense(self) -> Tensor:
        """The rows as a dense tensor."""
        if not self.is_sparse:
            return self.rows if self.mask is None else drop(self.rows, self.mask)
        rows, values = self.rows, dropped_values(self.rows, self.mask)
        return dense_rows(csr_tensor(rows.crow_indices(), rows.col_indices(), values, num_columns=rows.shape[1]))


class _DroppedLinear(torch.autograd.Function):
    """A linear map of dense rows under dropout, slab by slab."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, rows: Tensor, mask: Mask) -> Tensor:
        ctx.rows, ctx.mask = rows, mask
        out = empty((len(rows), len(weight)), weight.dtype, weight.device)
        matrix = weight.detach().t()
        for at, slab in _slabs(rows, mask, len(weight)):
            multiply(slab, matrix, None if bias is None else bias.detach(), out[at])
        return out

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted_weight, wanted_bias, *_ = ctx.needs_input_grad
        of_weight = None
        if wanted_weight:
            of_weight = grad.new_zeros(grad.shape[1], ctx.rows.shape[1])
            for at, slab in _slabs(ctx.rows, ctx.mask, grad.shape[1]):
                of_weight.addmm_(grad[at].t(), slab)
        return of_weight, grad.sum(0) if wanted_bias else None, None, None


def _slabs(rows: Tensor, mask: Mask, out_dim: int) -> Any:
    """Ranges of rows, and the dropped rows of each, in memory that the next slab overwrites."""
    step = block_rows(rows, out_dim)
    scratch = torch.empty((min(step, len(rows)), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    for start in range(0, len(rows), step):
        at = slice(start, min(start + step, len(rows)))
        yield at, dropped(rows[at], mask.after(start), scratch[: at.stop - at.start])
