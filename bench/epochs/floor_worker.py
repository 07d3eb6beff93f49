"""The floor as a contestant: its dense products, its gathers by hand-written C++, its bytes by copying.

Bandwidths are measured by doing: every gather runs on this graph at its width, with the loop of
:mod:`bench.kernels.yardstick`. Needs g++, and AVX2 or AVX-512.

The floor is what an epoch of a model cannot do without, in the best order known: a linear map and a sum are swapped where that narrows what is
gathered, sums of constant features are kept from epoch to epoch, edge tensors are never written (but the attention's gradients, one number per edge
and head), a linear map of sparse features reads a row of its weight for each non-zero. What is fused in this floor and in no system so far:
everything pointwise is one pass. It is an estimate, not a proof; its assumptions stand beside each model. N vertices, E edges, float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from bench.kernels.yardstick import Yardstick, can_run
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from sagann.graph import Topology

FLOAT_BYTES = 4


@dataclass(kw_only=True, slots=True)
class Work:
    products: list[tuple[int, int, int]] = field(default_factory=list)
    "Dense products (m, k, n): [m, k] @ [k, n]."
    gathers: list[int] = field(default_factory=list)
    "Passes over the edges, each by its floats per edge: rows read at random and summed."
    by_rows: list[int] = field(default_factory=list)
    "Passes over the non-zeros of sparse features, vertex by vertex, each by its floats per non-zero."
    by_columns: list[int] = field(default_factory=list)
    "The same, feature by feature: the gradient of a weight."
    moved_bytes: int = 0
    "Bytes read and written in order, at vertices and edges."
    trains: bool = True
    "Whether what is added has a backward; an evaluation has none."

    def linear(self, rows: int, in_dim: int, out_dim: int, *, input_grad: bool = True) -> None:
        """Add a linear map: forward, gradient of the weights, and of the input where it is needed."""
        self.products.append((rows, in_dim, out_dim))
        if self.trains:
            self.products.append((in_dim, rows, out_dim))
            if input_grad:
                self.products.append((rows, out_dim, in_dim))

    def sparse_linear(self, out_dim: int) -> None:
        """Add a linear map of sparse features, which need no gradient."""
        self.by_rows.append(out_dim)
        if self.trains:
            self.by_columns.append(out_dim)

    def gather(self, forward: list[int], backward: list[int]) -> None:
        """Add passes over the edges, by their floats per edge."""
        self.gathers += [*forward, *(backward if self.trains else [])]

    def move(self, forward: int, backward: int) -> None:
        """Add numbers read or written in order."""
        self.moved_bytes += FLOAT_BYTES * (forward + (backward if self.trains else 0))


class Size(NamedTuple):
    """The size of a graph and its model, and what an epoch consists of."""

    vertices: int
    edges: int
    "With self-loops where the model has them."
    features: int
    classes: int
    train: int
    hidden: int
    heads: int
    layers: int
    nonzeros: int | None = None
    "Non-zeros of sparse features; None for dense ones."
    dropout: bool = False
    evaluates: bool = False
    "Whether an epoch ends with a forward pass that is measured on the training and validation vertices."


def work_of(model: str, size: Size) -> Work:
    """The work of one epoch of a model by sagann's name."""
    work = Work()
    _walk(work, model, size)
    # Cross-entropy reads and writes its rows once forward and once backward; the logits' gradient is written whole.
    work.move(2 * size.train * size.classes, 2 * size.train * size.classes + size.vertices * size.classes)
    if size.evaluates:
        work.trains = False
        _walk(work, model, size)
        work.move(size.vertices * size.classes, 0)
    return work


def _walk(work: Work, model: str, size: Size) -> None:
    """One pass through the model, with its backward where the work trains."""
    if model == "ggnn":
        _linear(work, size, size.features, size.hidden, learns=False)
        _activation(work, size)
        for _ in range(size.layers):
            _drop(work, size, size.hidden, learns=True)
            _ggnn_step(work, size)
        _drop(work, size, size.hidden, learns=True)
        work.linear(size.vertices, size.hidden, size.classes)
        return
    dims = [size.features, *[size.hidden] * (size.layers - 1), size.classes]
    for hop in range(size.layers):
        learns = hop > 0
        _drop(work, size, dims[hop], learns=learns)
        if model == "gat":
            _gat(work, size, dims[hop], dims[hop + 1], learns, 1 if hop == size.layers - 1 else size.heads)
        else:
            _LAYERS[model](work, size, dims[hop], dims[hop + 1], learns)
        if hop < size.layers - 1:
            _activation(work, size)


def _drop(work: Work, size: Size, width: int, *, learns: bool) -> None:
    """Dropout reads and writes its input once forward and once backward; of sparse features, their non-zeros."""
    if size.dropout and work.trains:
        count = size.vertices * width if learns or size.nonzeros is None else size.nonzeros
        work.move(2 * count, 2 * count)


def _activation(work: Work, size: Size) -> None:
    """Forward reads and writes a row; backward reads two and writes one."""
    work.move(2 * size.vertices * size.hidden, 3 * size.vertices * size.hidden)


def _linear(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    if learns or size.nonzeros is None:
        work.linear(size.vertices, in_dim, out_dim, input_grad=learns)
    else:
        work.sparse_linear(out_dim)


def _sum(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    """A sum of neighbours beside a linear map, over the narrower side, forward and backward.

    The sum of features that are the same in every epoch is kept, where they are dense.
    """
    is_constant = not learns and size.nonzeros is None and not (size.dropout and work.trains)
    if not is_constant:
        width = min(in_dim, out_dim)
        work.gather([width], [width])


def _gcn(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    _linear(work, size, in_dim, out_dim, learns)
    _sum(work, size, in_dim, out_dim, learns)


def _two_maps(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    """CommNet and GraphSAGE: a map of the vertex, a map of what it hears."""
    _linear(work, size, in_dim, out_dim, learns)
    _gcn(work, size, in_dim, out_dim, learns)


def _gin(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    if not learns and size.nonzeros is not None:
        work.sparse_linear(out_dim)
    else:
        # The gradient of eps needs the gradient of the network's input, or a product of the same size.
        work.linear(size.vertices, in_dim, out_dim)
    _sum(work, size, in_dim, out_dim, learns)
    width = min(in_dim, out_dim) if learns or size.nonzeros is not None else in_dim
    work.move(3 * size.vertices * width, 0)
    work.move(2 * size.vertices * out_dim, 3 * size.vertices * out_dim)
    work.linear(size.vertices, out_dim, out_dim)


def _max_pool(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    _linear(work, size, in_dim, in_dim, learns)
    work.gather([in_dim], [])
    # Which edge was the largest is written, and read to bring the gradient back: read, read, written.
    work.move(2 * size.vertices * in_dim, 3 * size.vertices * in_dim)
    work.linear(size.vertices, in_dim, out_dim)


def _gated(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    _linear(work, size, in_dim, in_dim, learns)
    _linear(work, size, in_dim, in_dim, learns)
    # Forward: gate and value of the source. Backward for the destinations: the same again. Backward for the
    # sources: gate and gradient of the destination.
    work.gather(2 * [in_dim], 4 * [in_dim])
    work.linear(size.vertices, in_dim, out_dim)


def _gat(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool, heads: int) -> None:
    _linear(work, size, in_dim, out_dim, learns)
    # Forward: value and score of the source. Backward, over the out-edges: gradient, score, normaliser and product
    # of gradient and output of the destination.
    work.gather([out_dim, heads], [out_dim, 3 * heads])
    # The gradient of the scores goes to the other side of each edge through memory: written, read.
    work.move(0, 2 * size.edges * heads)
    # Scores read the values, forward and backward.
    work.move(size.vertices * out_dim, size.vertices * out_dim)


def _ggnn_step(work: Work, size: Size) -> None:
    hidden = size.hidden
    work.linear(size.vertices, hidden, hidden)
    work.gather([hidden], [hidden])
    work.linear(size.vertices, hidden, 3 * hidden)
    work.linear(size.vertices, hidden, 3 * hidden)
    # The cell reads six gates and a state and writes a state; backward reads a gradient more and writes seven.
    work.move(8 * size.vertices * hidden, 15 * size.vertices * hidden)


_LAYERS: dict[str, Callable[[Work, Size, int, int, bool], None]] = {
    "commnet": _two_maps,
    "gcn": _gcn,
    "sage": _two_maps,
    "gin": _gin,
    "maxpool-gcn": _max_pool,
    "gated-gcn": _gated,
}

SELF_LOOPS = ("gcn", "gat")
COPIED_AT_ONCE_BYTES = 64 << 20
"Twice the last-level cache, so that copying goes through memory."


class Floor:
    def __init__(self, work: Work, topology: Topology, features: torch.Tensor | None) -> None:
        self.work, self.topology = work, topology
        most = max([max(m * k, k * n) for m, k, n in work.products], default=0)
        self.operands = torch.randn(most) if most else torch.empty(0)
        self.product = torch.empty(max([m * n for m, _, n in work.products], default=0))
        half = min(COPIED_AT_ONCE_BYTES, work.moved_bytes // 2) // FLOAT_BYTES
        self.source, self.target = torch.ones(half), torch.ones(half)
        self.features = features

    @cached_property
    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What is gathered, and where to: features and results, and gradients of these and of those."""
        widest = max(self.work.gathers, default=0)
        return [
            (torch.ones(self.topology.num_src * widest), torch.ones(self.topology.num_dst * widest))
            for _ in range(2)
        ]

    def run(self) -> float:
        """One epoch's floor."""
        self._products()
        self._sparse_products()
        self._gathers()
        self._copies()
        return float("nan")

    def _products(self) -> None:
        for m, k, n in self.work.products:
            left, right = self.operands[: m * k].view(m, k), self.operands[: k * n].view(k, n)
            # The gradient of weights is a product with a transposed matrix.
            left = self.operands[: m * k].view(k, m).T if k > m and k > n else left
            torch.mm(left, right, out=self.product[: m * n].view(m, n))

    def _sparse_products(self) -> None:
        if self.features is None:
            return
        by_rows, by_columns = self.nonzeros
        for loops, widths in ((by_rows, self.work.by_rows), (by_columns, self.work.by_columns)):
            for width in widths:
                loops.run("sum", *self.mapped, num_features=width)

    @cached_property
    def mapped(self) -> list[torch.Tensor]:
        """What sparse products read and write: rows of weights, and of vertices."""
        assert self.features is not None
        widest = max([*self.work.by_rows, *self.work.by_columns], default=0)
        return [torch.ones(max(self.features.shape) * widest) for _ in range(2)]

    @cached_property
    def nonzeros(self) -> tuple[Yardstick, Yardstick]:
        """The C++ loops over the non-zeros of the features: a sparse product is a sum over these, by rows and by columns."""
        assert self.features is not None
        vertex, feature = self.features.nonzero().int().unbind(1)
        num_vertices, num_features = self.features.shape
        # A topology's destinations are among its sources.
        sources = max(num_vertices, num_features)
        return (
            Yardstick(Topology.from_coo(src=feature, dst=vertex, num_src=sources, num_dst=num_vertices)),
            Yardstick(Topology.from_coo(src=vertex, dst=feature, num_src=sources, num_dst=num_features)),
        )

    def _gathers(self) -> None:
        # In order of width, so that two of a width, forward and backward, do not find the other's rows in the cache.
        for number, width in enumerate(sorted(self.work.gathers)):
            x, out = self.rows[number % 2]
            self.yardstick.run("sum", x, out, num_features=width)

    @cached_property
    def yardstick(self) -> Yardstick:
        return Yardstick(self.topology)

    def _copies(self) -> None:
        # Copying reads a byte and writes one.
        left = self.work.moved_bytes // 2 // FLOAT_BYTES
        while left > 0:
            self.target[:left].copy_(self.source[:left])
            left -= len(self.source)


def load(specification: dict, folder: Path) -> Stored:
    """The graph, with self-loops where the model has them."""
    if not can_run():
        raise UnsupportedError("the floor's gathers need g++, and a processor with AVX2 or AVX-512")
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def build(specification: dict, stored: Stored) -> Floor:
    """The floor of the model on this graph; every graph here is symmetric, so backward gathers are the same."""
    size = Size(
        vertices=stored.num_vertices,
        edges=len(stored.src),
        features=stored.features.shape[1],
        classes=stored.num_classes,
        train=len(stored.train),
        hidden=specification["hidden"],
        heads=specification["heads"],
        layers=specification["layers"],
        nonzeros=int(stored.features.count_nonzero()) if specification["sparse"] else None,
        dropout=specification["dropout"] > 0,
        evaluates=specification["defaults"],
    )
    topology = Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices, validate=False)
    features = stored.features if specification["sparse"] else None
    return Floor(work_of(specification["model"], size), topology, features)


if __name__ == "__main__":
    serve(load, build)
