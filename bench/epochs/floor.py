"""What an epoch of a model cannot do without: dense products, rows gathered over the edges, bytes at the vertices.

The best order known is assumed: a linear map and a sum are swapped where that narrows what is gathered, sums of
constant features are kept from epoch to epoch, edge tensors are never written (but the attention's gradients, one
number per edge and head). What is fused in this floor and in no system so far: everything pointwise is one pass.
The floor is an estimate, not a proof; its assumptions stand beside each model. N vertices, E edges, float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FLOAT_BYTES = 4


@dataclass(kw_only=True, slots=True)
class Work:
    """The work of one epoch."""

    products: list[tuple[int, int, int]] = field(default_factory=list)
    "Dense products (m, k, n): [m, k] @ [k, n]."
    gathers: list[int] = field(default_factory=list)
    "Passes over the edges, each by its floats per edge: rows read at random and summed."
    moved_bytes: int = 0
    "Bytes read and written in order, at vertices and edges."

    def linear(self, rows: int, in_dim: int, out_dim: int, *, input_grad: bool = True) -> None:
        """A linear map: forward, gradient of the weights, and of the input where it is needed."""
        self.products += [(rows, in_dim, out_dim), (in_dim, rows, out_dim)]
        if input_grad:
            self.products.append((rows, out_dim, in_dim))

    def move(self, floats: int) -> None:
        """Numbers read or written in order."""
        self.moved_bytes += FLOAT_BYTES * floats

    @property
    def operations(self) -> int:
        """Multiplications and additions of the products."""
        return sum(2 * m * k * n for m, k, n in self.products)


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a graph and its model."""

    vertices: int
    edges: int
    "With self-loops where the model has them."
    features: int
    classes: int
    train: int
    "Vertices to train on."
    hidden: int
    heads: int
    layers: int
    encoder: bool
    "A linear map of the features comes first."


def work_of(model: str, size: Size) -> Work:
    """The work of one epoch of a model by sagann's name."""
    work = Work()
    encoded = size.encoder or model == "ggnn"
    if encoded:
        work.linear(size.vertices, size.features, size.hidden, input_grad=False)
    if model == "ggnn":
        for _ in range(size.layers):
            _ggnn_step(work, size)
        work.linear(size.vertices, size.hidden, size.classes)
    else:
        if encoded:
            _activation(work, size)
        dims = [size.hidden if encoded else size.features, *[size.hidden] * (size.layers - 1), size.classes]
        for hop in range(size.layers):
            learns = encoded or hop > 0
            if model == "gat":
                _gat(work, size, dims[hop], dims[hop + 1], learns, 1 if hop == size.layers - 1 else size.heads)
            else:
                _LAYERS[model](work, size, dims[hop], dims[hop + 1], learns)
            if hop < size.layers - 1:
                _activation(work, size)
    # Cross-entropy reads and writes its rows once forward and once backward; the logits' gradient is written whole.
    work.move(4 * size.train * size.classes + size.vertices * size.classes)
    return work


def _activation(work: Work, size: Size) -> None:
    """Forward reads and writes a row; backward reads two and writes one."""
    work.move(5 * size.vertices * size.hidden)


def _sum(work: Work, in_dim: int, out_dim: int, learns: bool) -> None:
    """A sum of neighbours beside a linear map: over the narrower side, forward and backward; of constants, never."""
    if learns:
        work.gathers += 2 * [min(in_dim, out_dim)]


def _gcn(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    work.linear(size.vertices, in_dim, out_dim, input_grad=learns)
    _sum(work, in_dim, out_dim, learns)


def _two_maps(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    """CommNet and GraphSAGE: a map of the vertex, a map of what it hears."""
    work.linear(size.vertices, in_dim, out_dim, input_grad=learns)
    _gcn(work, size, in_dim, out_dim, learns)


def _gin(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    # The gradient of eps needs the gradient of the network's input, or a product of the same size.
    work.linear(size.vertices, in_dim, out_dim, input_grad=True)
    _sum(work, in_dim, out_dim, learns)
    work.move(3 * size.vertices * (min(in_dim, out_dim) if learns else in_dim))
    work.move(5 * size.vertices * out_dim)
    work.linear(size.vertices, out_dim, out_dim)


def _max_pool(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    work.linear(size.vertices, in_dim, in_dim, input_grad=learns)
    work.gathers.append(in_dim)
    # Which edge was the largest is written, and read to bring the gradient back: read, read, written.
    work.move(5 * size.vertices * in_dim)
    work.linear(size.vertices, in_dim, out_dim)


def _gated(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool) -> None:
    work.linear(size.vertices, in_dim, in_dim, input_grad=learns)
    work.linear(size.vertices, in_dim, in_dim, input_grad=learns)
    # Forward: gate and value of the source. Backward for the destinations: the same again. Backward for the
    # sources: gate and gradient of the destination.
    work.gathers += 6 * [in_dim]
    work.linear(size.vertices, in_dim, out_dim)


def _gat(work: Work, size: Size, in_dim: int, out_dim: int, learns: bool, heads: int) -> None:
    work.linear(size.vertices, in_dim, out_dim, input_grad=learns)
    # Forward: value and score of the source. Backward, over the out-edges: gradient, score, normaliser and product
    # of gradient and output of the destination.
    work.gathers += [out_dim, heads, out_dim, 3 * heads]
    # The gradient of the scores goes to the other side of each edge through memory: written, read.
    work.move(2 * size.edges * heads)
    # Scores read the values, forward and backward.
    work.move(2 * size.vertices * out_dim)


def _ggnn_step(work: Work, size: Size) -> None:
    hidden = size.hidden
    work.linear(size.vertices, hidden, hidden)
    work.gathers += 2 * [hidden]
    work.linear(size.vertices, hidden, 3 * hidden)
    work.linear(size.vertices, hidden, 3 * hidden)
    # The cell reads six gates and a state and writes a state; backward reads a gradient more and writes seven.
    work.move((8 + 15) * size.vertices * hidden)


_LAYERS = {
    "commnet": _two_maps,
    "gcn": _gcn,
    "sage": _two_maps,
    "gin": _gin,
    "maxpool-gcn": _max_pool,
    "gated-gcn": _gated,
}
