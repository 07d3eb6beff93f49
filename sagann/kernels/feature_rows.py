"""FeatureRows: features for a linear map, which reads sparse rows as they lie and drops dense rows while it reads them.

Most layers begin with a linear map of the features. A map of sparse rows costs their non-zeros. Dropout of dense rows needs no
tensor of the features' size: a slab of rows that fits the caches is dropped and multiplied, and the gradient of the weight
drops the slab again.

A map of sparse rows is passes over edges: a non-zero is an edge from its feature to its vertex, weighted by its value. The forward pass gathers rows of
the transposed weight at the vertices. The gradient of the weight gathers rows of the incoming gradient at the features. So no pass needs an atomic
operation, and the bits do not depend on the number of threads. Both passes draw the dropout of non-zeros.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sagann.graph.feature_store import is_constant, version_of
from sagann.graph.large_arrays import slabs
from sagann.graph.rows import csr_slice, csr_tensor, dense_rows
from sagann.kernels import dense
from sagann.kernels.edge import dialect_for
from sagann.kernels.edge.builder import Builder, arithmetic_dtype
from sagann.kernels.edge.function import EdgeFunction, End, Input, Output
from sagann.kernels.edge.pass_edges import PassEdges
from sagann.kernels.edge.random import random_rows
from sagann.kernels.first_order import Saved, first_order_only
from sagann.kernels.memory import empty
from sagann.kernels.row_dropout import Mask, drawn_mask, drop, dropped, first_value


class FeatureRows:
    """Rows of features that get no gradient: [rows, F], with the shape, type and device of a tensor.

    ``mask`` has the values that dropout keeps, or the non-zeros of sparse rows. ``first`` is the id of the first row; of sparse rows, of the first
    non-zero.
    """

    requires_grad = False

    def __init__(self, rows: Tensor, *, mask: Mask | None = None, first: int = 0) -> None:
        self.rows, self.mask, self.first = rows, mask, first
        self.shape, self.dtype, self.device, self.ndim = rows.shape, rows.dtype, rows.device, rows.ndim

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are ``torch.sparse_csr``."""
        return self.rows.layout == torch.sparse_csr

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
            dense.multiply(slab, matrix, None if bias is None else bias.detach(), out[at])
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
    step = dense.block_rows(rows, out_dim)
    scratch = torch.empty((min(step, len(rows)), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    for start in range(0, len(rows), step):
        at = slice(start, min(start + step, len(rows)))
        yield at, dropped(rows[at], mask.after(start), scratch[: at.stop - at.start])


PIECE = 1 << 20
"Non-zeros that are grouped by feature at a time, where the groups are not kept."
_WEIGHT, _VALUE = "rows", "value"
_EDGES = WeakTensorKeyDictionary()
"By sparse rows, and the end that groups edges: the version of the rows (changes in place), and their non-zeros as edges."


def sparse_linear(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Mask | None) -> Tensor:
    """Map ``torch.sparse_csr`` rows, which get no gradient: ``dropout(x) @ weight.T + bias``.

    ``mask`` is of the non-zeros, in their order.
    """
    out: Tensor = _SparseLinear.apply(weight, bias, x, mask)  # type: ignore[no-untyped-call]
    return out


def dropped_values(x: Tensor, mask: Mask | None) -> Tensor:
    """The non-zeros of ``x``, set to 0 where ``mask`` drops them."""
    values = x.values()
    if mask is None:
        return values
    ids = torch.arange(mask.first, mask.first + len(values), device=values.device)
    return values * random_rows(ids, (), mask.p, 0, mask.seed, values.dtype)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor, mask: Mask | None) -> Tensor:
        # save_for_backward takes no sparse tensors.
        ctx.x, ctx.mask, ctx.dtype = x, mask, weight.dtype
        rows = _gathered(_edges(x, "dst"), weight.detach().t().contiguous(), mask).to(weight.dtype)
        return rows if bias is None else rows.add_(bias.detach())

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted_weight, wanted_bias, *_ = ctx.needs_input_grad
        of_weight = None
        if wanted_weight:
            of_weight = _gathered_at_features(ctx.x, grad.contiguous(), ctx.mask).to(ctx.dtype).t()
        return of_weight, grad.sum(0) if wanted_bias else None, None, None


def _gathered_at_features(x: Tensor, rows: Tensor, mask: Mask | None) -> Tensor:
    """The sum over each feature's non-zeros of value times row.

    Non-zeros of constant rows are grouped once. Those of other rows, as an interval's, are grouped piece by piece in each call,
    so that the memory for that is bounded.
    """
    if is_constant(x) or x._nnz() <= PIECE:
        return _gathered(_edges(x, "src"), rows, mask)
    total: Tensor | None = None
    for vertices, entries in slabs(x.crow_indices(), PIECE):
        piece = csr_slice(x, vertices.start, vertices.stop)
        part = None if mask is None else mask.after(entries.start)
        total = _gathered(_grouped(piece, "src"), rows[vertices], part, total)
    assert total is not None
    return total


def _gathered(edges: PassEdges, rows: Tensor, mask: Mask | None, total: Tensor | None = None) -> Tensor:
    """The sum over each group's non-zeros of value times row, added to ``total`` where that is given."""
    function = _function(edges.at, rows.shape[1], rows.dtype, None if mask is None else mask.p)
    given = {_WEIGHT: rows, _VALUE: edges.edge_data[_VALUE]}
    dialect = dialect_for(rows.device.type)
    seed, first = (0, 0) if mask is None else (mask.seed, mask.first)
    # Only a pass that continues from earlier results can number its edges from `first`.
    if first and total is None:
        total = rows.new_zeros(edges.num_rows, rows.shape[1], dtype=arithmetic_dtype(rows.dtype))
    into = None if total is None else [total]
    return dialect.run(function, edges, given, seed=seed, into=into, edge_offset=first)[0]


@cache
def _function(at: End, width: int, dtype: torch.dtype, p: float | None) -> EdgeFunction:
    """The sum of value times row at the vertices ("dst") or at the features ("src")."""
    rows = Input(name=_WEIGHT, side="src" if at == "dst" else "dst", shape=(width,), dtype=dtype)
    b = Builder([rows, Input(name=_VALUE, side="edge", shape=(), dtype=arithmetic_dtype(dtype))])
    factor = _VALUE
    if p is not None:
        factor = b.op("mul", _VALUE, b.op("random", dtype=arithmetic_dtype(dtype), p=p, salt=0))
    return b.build([Output(reduce="sum", values=(b.op("mul", _WEIGHT, factor),))], at)


def _edges(x: Tensor, at: End) -> PassEdges:
    """The non-zeros grouped by vertex ("dst") or feature ("src"); made once, and again when the tensor changes."""
    known: dict[End, tuple[int, PassEdges]] = _EDGES.setdefault(x, {})
    version = version_of(x)
    if at not in known or known[at][0] != version or version < 0:
        known[at] = version, _grouped(x, at)
    return known[at][1]


def _grouped(x: Tensor, at: End) -> PassEdges:
    num_rows, num_features = x.shape
    # The values are a view that keeps the rows alive, and edges are kept for as long as the rows are.
    indptr, indices, values = x.crow_indices(), x.col_indices(), x.values().detach()
    if at == "dst":
        data = {_VALUE: values}
        return PassEdges(at=at, indptr=indptr, indices=indices, num_others=num_features, edge_data=data)
    # Imported here: it loads Numba, which is slow to import.
    from sagann.graph.counting_sort import group_by_key

    ids = torch.arange(num_rows, dtype=torch.int32, device=x.device)
    vertices = torch.repeat_interleave(ids, indptr.diff(), output_size=x._nnz())
    grouped = group_by_key(indices, num_features, values=vertices, positions=True)
    return PassEdges(
        at=at,
        indptr=grouped.indptr,
        indices=grouped.values,
        num_others=num_rows,
        edge_ids=grouped.positions,
        edge_data={_VALUE: values.index_select(0, grouped.positions)},
    )
