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
from itertools import pairwise
from pathlib import Path

import torch

from bench.kernels.yardstick import Yardstick, can_run
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from sagann.graph import Topology

FLOAT_BYTES = 4


class Work:
    """The work of one epoch of a model by sagann's name."""

    def __init__(self, specification: dict, stored: Stored) -> None:
        self.n, self.features = stored.features.shape
        self.num_edges, self.classes = len(stored.src), stored.num_classes
        self.hidden, self.heads, self.layers = (specification[name] for name in ("hidden", "heads", "layers"))
        self.nonzeros = int(stored.features.count_nonzero()) if specification["sparse"] else None
        "Non-zeros of sparse features; None for dense ones."
        self.drops, self.trains = specification["dropout"] > 0, True
        "Whether what is added has a backward; an evaluation has none."
        self.products: list[tuple[int, int, int]] = []
        "Dense products (m, k, n): [m, k] @ [k, n]."
        self.gathers: list[int] = []
        "Passes over the edges, each by its floats per edge: rows read at random and summed."
        self.by_rows: list[int] = []
        "Passes over the non-zeros of sparse features, vertex by vertex, each by its floats per non-zero."
        self.by_columns: list[int] = []
        "The same, feature by feature: the gradient of a weight."
        self.moved_bytes = 0
        "Bytes read and written in order, at vertices and edges."
        self._walk(specification["model"])
        # Cross-entropy reads and writes its rows once forward and once backward; the logits' gradient is written whole.
        rows = 2 * len(stored.train) * self.classes
        self.move(rows, rows + self.n * self.classes)
        if specification["defaults"]:
            # An epoch ends with a forward pass that is measured on the training and validation vertices.
            self.trains = False
            self._walk(specification["model"])
            self.move(self.n * self.classes, 0)

    def _walk(self, model: str) -> None:
        """One pass through the model, with its backward where the work trains."""
        if model == "ggnn":
            self.map(self.features, self.hidden, learns=False)
            self.activation()
            for _ in range(self.layers):
                self.drop(self.hidden, learns=True)
                self.ggnn_step()
            self.drop(self.hidden, learns=True)
            self.linear(self.hidden, self.classes)
            return
        dims = [self.features, *[self.hidden] * (self.layers - 1), self.classes]
        for hop, (in_dim, out_dim) in enumerate(pairwise(dims)):
            learns, is_last = hop > 0, hop == self.layers - 1
            self.drop(in_dim, learns=learns)
            if model == "gat":
                self.gat(in_dim, out_dim, learns, 1 if is_last else self.heads)
            else:
                LAYERS[model](self, in_dim, out_dim, learns)
            if not is_last:
                self.activation()

    def linear(self, in_dim: int, out_dim: int, *, input_grad: bool = True) -> None:
        """Add a linear map: forward, gradient of the weights, and of the input where it is needed."""
        self.products.append((self.n, in_dim, out_dim))
        if self.trains:
            self.products.append((in_dim, self.n, out_dim))
            if input_grad:
                self.products.append((self.n, out_dim, in_dim))

    def sparse_linear(self, out_dim: int) -> None:
        """Add a linear map of sparse features, which need no gradient."""
        self.by_rows.append(out_dim)
        self.by_columns += [out_dim] if self.trains else []

    def map(self, in_dim: int, out_dim: int, learns: bool) -> None:
        """Add a linear map of a layer's input, which is the features where it does not learn."""
        if learns or self.nonzeros is None:
            self.linear(in_dim, out_dim, input_grad=learns)
        else:
            self.sparse_linear(out_dim)

    def gather(self, forward: list[int], backward: list[int]) -> None:
        """Add passes over the edges, by their floats per edge."""
        self.gathers += [*forward, *(backward if self.trains else [])]

    def move(self, forward: int, backward: int) -> None:
        """Add numbers read or written in order."""
        self.moved_bytes += FLOAT_BYTES * (forward + (backward if self.trains else 0))

    def drop(self, width: int, *, learns: bool) -> None:
        """Dropout reads and writes its input once forward and once backward; of sparse features, their non-zeros."""
        if self.drops and self.trains:
            count = self.n * width if learns or self.nonzeros is None else self.nonzeros
            self.move(2 * count, 2 * count)

    def activation(self) -> None:
        """Forward reads and writes a row; backward reads two and writes one."""
        self.move(2 * self.n * self.hidden, 3 * self.n * self.hidden)

    def sum(self, in_dim: int, out_dim: int, learns: bool) -> None:
        """A sum of neighbours beside a linear map, over the narrower side, forward and backward.

        The sum of features that are the same in every epoch is kept, where they are dense.
        """
        is_constant = not learns and self.nonzeros is None and not (self.drops and self.trains)
        if not is_constant:
            width = min(in_dim, out_dim)
            self.gather([width], [width])

    def gcn(self, in_dim: int, out_dim: int, learns: bool) -> None:
        self.map(in_dim, out_dim, learns)
        self.sum(in_dim, out_dim, learns)

    def two_maps(self, in_dim: int, out_dim: int, learns: bool) -> None:
        """CommNet and GraphSAGE: a map of the vertex, a map of what it hears."""
        self.map(in_dim, out_dim, learns)
        self.gcn(in_dim, out_dim, learns)

    def gin(self, in_dim: int, out_dim: int, learns: bool) -> None:
        is_sparse = not learns and self.nonzeros is not None
        if is_sparse:
            self.sparse_linear(out_dim)
        else:
            # The gradient of eps needs the gradient of the network's input, or a product of the same size.
            self.linear(in_dim, out_dim)
        self.sum(in_dim, out_dim, learns)
        self.move(3 * self.n * (min(in_dim, out_dim) if learns or is_sparse else in_dim), 0)
        self.move(2 * self.n * out_dim, 3 * self.n * out_dim)
        self.linear(out_dim, out_dim)

    def max_pool(self, in_dim: int, out_dim: int, learns: bool) -> None:
        self.map(in_dim, in_dim, learns)
        self.gather([in_dim], [])
        # Which edge was the largest is written, and read to bring the gradient back: read, read, written.
        self.move(2 * self.n * in_dim, 3 * self.n * in_dim)
        self.linear(in_dim, out_dim)

    def gated(self, in_dim: int, out_dim: int, learns: bool) -> None:
        self.map(in_dim, in_dim, learns)
        self.map(in_dim, in_dim, learns)
        # Forward: gate and value of the source. Backward for the destinations: the same again. Backward for the
        # sources: gate and gradient of the destination.
        self.gather(2 * [in_dim], 4 * [in_dim])
        self.linear(in_dim, out_dim)

    def gat(self, in_dim: int, out_dim: int, learns: bool, heads: int) -> None:
        self.map(in_dim, out_dim, learns)
        # Forward: value and score of the source. Backward, over the out-edges: gradient, score, normaliser and product
        # of gradient and output of the destination.
        self.gather([out_dim, heads], [out_dim, 3 * heads])
        # The gradient of the scores goes to the other side of each edge through memory: written, read.
        self.move(0, 2 * self.num_edges * heads)
        # Scores read the values, forward and backward.
        self.move(self.n * out_dim, self.n * out_dim)

    def ggnn_step(self) -> None:
        hidden = self.hidden
        self.linear(hidden, hidden)
        self.gather([hidden], [hidden])
        self.linear(hidden, 3 * hidden)
        self.linear(hidden, 3 * hidden)
        # The cell reads six gates and a state and writes a state; backward reads a gradient more and writes seven.
        self.move(8 * self.n * hidden, 15 * self.n * hidden)


LAYERS: dict[str, Callable[[Work, int, int, bool], None]] = {
    "commnet": Work.two_maps,
    "gcn": Work.gcn,
    "sage": Work.two_maps,
    "gin": Work.gin,
    "maxpool-gcn": Work.max_pool,
    "gated-gcn": Work.gated,
}

SELF_LOOPS = ("gcn", "gat")
COPIED_AT_ONCE_BYTES = 64 << 20
"Twice the last-level cache, so that copying goes through memory."


class Floor:
    """An epoch's floor on a graph, with features where they are sparse."""

    def __init__(self, work: Work, topology: Topology, features: torch.Tensor | None) -> None:
        self.work = work
        self.operands = torch.randn(max((max(m * k, k * n) for m, k, n in work.products), default=0))
        self.product = torch.empty(max((m * n for m, _, n in work.products), default=0))
        half = min(COPIED_AT_ONCE_BYTES, work.moved_bytes // 2) // FLOAT_BYTES
        self.source, self.target = torch.ones(half), torch.ones(half)
        rows = topology.num_src * max(work.gathers, default=0)
        self.gathered = [(torch.ones(rows), torch.ones(rows)) for _ in range(2)]
        "What is gathered, and where to: features and results, and gradients of these and of those."
        self.loops = Yardstick(topology)
        self.sparse: list[tuple[Yardstick, list[int]]] = []
        if features is not None:
            # A sparse product is a sum over the non-zeros, by rows and by columns.
            vertex, feature = features.nonzero().int().unbind(1)
            # A topology's destinations are among its sources.
            most, (num_vertices, num_features) = max(features.shape), features.shape
            by_rows = Topology.from_coo(src=feature, dst=vertex, num_src=most, num_dst=num_vertices)
            by_columns = Topology.from_coo(src=vertex, dst=feature, num_src=most, num_dst=num_features)
            self.sparse = [(Yardstick(by_rows), work.by_rows), (Yardstick(by_columns), work.by_columns)]
            widest = max([*work.by_rows, *work.by_columns], default=0)
            self.mapped = torch.ones(most * widest), torch.ones(most * widest)

    def run(self) -> float:
        """One epoch's floor."""
        for m, k, n in self.work.products:
            left, right = self.operands[: m * k].view(m, k), self.operands[: k * n].view(k, n)
            # The gradient of weights is a product with a transposed matrix.
            left = self.operands[: m * k].view(k, m).T if k > m and k > n else left
            torch.mm(left, right, out=self.product[: m * n].view(m, n))
        for loops, widths in self.sparse:
            for width in widths:
                loops.run("sum", *self.mapped, num_features=width)
        # In order of width, so that two of a width, forward and backward, do not find the other's rows in the cache.
        for number, width in enumerate(sorted(self.work.gathers)):
            self.loops.run("sum", *self.gathered[number % 2], num_features=width)
        # Copying reads a byte and writes one.
        left_over = self.work.moved_bytes // 2 // FLOAT_BYTES
        while left_over > 0:
            self.target[:left_over].copy_(self.source[:left_over])
            left_over -= len(self.source)
        return float("nan")


def load(specification: dict, folder: Path) -> Stored:
    """The graph, with self-loops where the model has them."""
    if not can_run():
        raise UnsupportedError("the floor's gathers need g++, and a processor with AVX2 or AVX-512")
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def build(specification: dict, stored: Stored) -> Floor:
    """The floor of the model on this graph; every graph here is symmetric, so backward gathers are the same."""
    topology = Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices, validate=False)
    features = stored.features if specification["sparse"] else None
    return Floor(Work(specification, stored), topology, features)


if __name__ == "__main__":
    serve(load, build)
