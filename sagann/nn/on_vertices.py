"""Models of whole graphs and of links, made of a model of vertices: by pooling and a head, and by a score for two rows.

Pooling is a gather like any other: every vertex sends its row along one edge to its graph. So the kernels of layers run it, forward and
backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, require_choice, require_type
from sagann.graph import Graph, Topology, id_dtype
from sagann.graph.checks import check_offsets, require_array, wrong_form
from sagann.nn.layers import require_arguments
from sagann.nn.model_call import VERTICES, check_call, parameters_of
from sagann.saga import SagaLayer
from sagann.saga.edge import check_accumulator
from sagann.saga.layer import count_hops

DECODERS = ("dot", "distmult", "mlp")
"""Scores of two rows: 'dot' is their product; 'distmult' weighs each column by the type of the link; 'mlp' is two linear maps with a ReLU
between, of the product of each column."""


def pool(rows: Tensor, graph_ptr: Tensor, how: str | tuple[str, ...] = "mean") -> Tensor:
    """Gather the rows of each graph's vertices into one row for the graph, differentiably.

    Equal to PyG's ``global_add_pool``, ``global_mean_pool`` and ``global_max_pool``, but that of equal maxima the first one gets the
    gradient, as in a layer.

    Args:
        rows: floating point [num_vertices, F].
        graph_ptr: int64 [num_graphs + 1], on the device of ``rows``: graph g has the rows ``graph_ptr[g]`` to ``graph_ptr[g + 1] - 1``.
        how: an accumulator that reduces messages of one value: 'sum', 'mean', 'max', 'min', 'var', 'std' or 'mul'. With a tuple of
            several, their results stand side by side.
    Returns:
        [num_graphs, F], or F times the number of accumulators. The row of a graph without vertices is that of a vertex without in-edges:
        0, and 1 for 'mul'.
    Raises:
        InputError: the offsets do not fit the rows.
        LayerError: ``how`` is no such accumulator.
    Example:
        >>> pool(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 3]), "mean")
        tensor([[2.],
                [5.]])
    """
    check_pool(how, where="pool, how")
    _check(rows, graph_ptr)
    num_rows, num_graphs = len(rows), len(graph_ptr) - 1
    if num_graphs > num_rows:
        # The destinations of a topology are the first of its sources, so graphs without vertices need sources that no edge reads.
        rows = torch.cat([rows, rows.new_zeros(num_graphs - num_rows, *rows.shape[1:])])
    vertices = torch.arange(num_rows, dtype=id_dtype(len(rows)), device=rows.device)
    topology = Topology(indptr=graph_ptr, indices=vertices, num_src=len(rows), validate=False)
    pooled: Tensor = _layer(how)(topology, rows)
    return pooled


@cache
def _layer(how: str | tuple[str, ...]) -> SagaLayer:
    """A layer that gathers its input's rows. It is no part of a model: a model that pools has no further hop."""
    layer = SagaLayer()
    layer.accumulator = how
    return layer


def check_pool(how: str | tuple[str, ...], *, where: str) -> None:
    """Refuse what is no accumulator that can pool; ``where`` is the argument, for errors."""
    require_type(how, (str, tuple), where=where, hint="Name an accumulator, or several in a tuple.")
    if how in ("softmax", "concat"):
        raise LayerError(
            f"an accumulator that cannot pool: '{how}' does not reduce one value of each vertex (in {where})",
            hint="Choose sum, mean, max, min, var, std or mul; weight rows by a score of each before a sum.",
        )
    check_accumulator(how, None, where)


def _check(rows: Tensor, graph_ptr: Tensor) -> None:
    where, hint = "pool, graph_ptr", "Pass pool(rows, batch.graph_ptr, 'mean')."
    require_type(rows, Tensor, where="pool, rows", hint=hint)
    if rows.ndim < 2 or rows.layout != torch.strided:
        hint = "Pass a row for each vertex: rows.unsqueeze(1) for a number each."
        raise wrong_form(rows, "a dense tensor [num_vertices, F]", where="pool, rows", hint=hint)
    require_array(graph_ptr, (torch.int64,), "[num_graphs + 1]", where=where, hint=hint)
    if graph_ptr.device != rows.device:
        raise InputError(
            f"rows and offsets are on different devices: {rows.device} and {graph_ptr.device} (in pool)",
            hint="Move both with .to(device).",
        )
    check_offsets(graph_ptr, len(rows), "graph offsets", where=where)


class OnVertices(nn.Module):
    """A model of something else than vertices, whose ``gnn``, called as ``gnn(hops, x)``, gives each vertex a row."""

    def __init__(self, gnn: nn.Module) -> None:
        super().__init__()
        where = f"{type(self).__name__}.gnn"
        require_type(gnn, nn.Module, where=where, hint="Pass a module that is called as gnn(hops, x).")
        check_call(gnn, VERTICES, where=f"{where}, a {type(gnn).__name__}")
        self.gnn = gnn

    @property
    def num_hops(self) -> int:
        """Number of topologies that the model walks."""
        return count_hops(self.gnn)

    @property
    def takes_sparse_features(self) -> bool:
        """Whether the vertices' model reads ``torch.sparse_csr`` features."""
        return getattr(self.gnn, "takes_sparse_features", False)

    def prepare(self, graph: Graph) -> Graph:
        """The graph as the vertices' model prepares it."""
        prepare = getattr(self.gnn, "prepare", None)
        return graph if prepare is None else prepare(graph)


class GraphModel(OnVertices):
    """Gives each graph a row: a model gives its vertices rows, ``pool`` makes one of them, and two linear maps with a ReLU between make the outputs.

    Args:
        gnn: a model that gives each vertex a row, called as ``gnn(hops, x)``.
        width: width of these rows, and of the hidden row of the head.
        out_dim: number of outputs of a graph.
        pool: how rows are pooled (:func:`sagann.nn.pool`): an accumulator, or several in a tuple.
        dropout: probability of dropping a hidden value of the head.

    Example:
        >>> import torch
        >>> from sagann.nn import GIN
        >>> from sagann.nn.stack import GNN
        >>> model = GraphModel(GNN([GIN(4, 16), GIN(16, 16)]), 16, 3, pool=("mean", "max"))
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3]), dst=torch.tensor([1, 2]), num_src=5)
        >>> model([topology] * 2, torch.randn(5, 4), torch.tensor([0, 2, 5])).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        gnn: nn.Module,
        width: int,
        out_dim: int,
        *,
        pool: str | tuple[str, ...] = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(gnn)
        require_arguments(self, width=width, out_dim=out_dim, dropout=dropout)
        check_pool(pool, where="GraphModel.pool")
        self.pool = pool
        pooled = width * (1 if isinstance(pool, str) else len(pool))
        self.head = nn.Sequential(
            nn.Linear(pooled, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, out_dim)
        )

    def forward(self, hops: Sequence[Topology], x: Tensor, graph_ptr: Tensor) -> Tensor:
        """Outputs [num_graphs, out_dim] of the graphs whose offsets are ``graph_ptr``, int64 [num_graphs + 1]."""
        return self.head(pool(self.gnn(hops, x), graph_ptr, self.pool))


def pooled_by(text: str, *, where: str) -> str | tuple[str, ...]:
    """The accumulators that a text such as 'mean' or 'mean,max' names, checked; ``where`` is the argument, for errors."""
    require_type(text, str, where=where, hint="Name an accumulator, or several as 'mean,max'.")
    names = tuple(name.strip() for name in text.split(","))
    how = names[0] if len(names) == 1 else names
    check_pool(how, where=where)
    return how


def reads_graphs(model: nn.Module | type[nn.Module]) -> bool:
    """Whether a model gives a row for each graph: what its ``gives_graphs`` says, or whether ``forward`` takes ``graph_ptr``, or needs PyG's
    ``batch``."""
    known = parameters_of(model)
    takes = "graph_ptr" in known or ("batch" in known and known["batch"].default is inspect.Parameter.empty)
    return bool(getattr(model, "gives_graphs", takes))


def product(src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
    """The product of rows [n, F] and [n, F]: a score for each link, [n]."""
    return (src * dst).sum(-1)


class LinkModel(OnVertices):
    """Gives each vertex a row, and two rows a score: how likely an edge joins the vertices.

    Args:
        gnn: a model that gives each vertex a row, called as ``gnn(hops, x)``.
        width: width of these rows.
        decoder: a name in :data:`DECODERS`.
        num_edge_types: number of types of links, for 'distmult'; 0 where links have no types.
        dropout: probability of dropping a hidden value of 'mlp'.
    References:
        Kipf and Welling, Variational Graph Auto-Encoders, NeurIPS workshop on Bayesian Deep Learning 2016 (dot); Yang et al., Embedding Entities
        and Relations for Learning and Inference in Knowledge Bases, ICLR 2015 (distmult).
    Example:
        >>> from sagann.nn import SAGE
        >>> from sagann.nn.stack import GNN
        >>> model = LinkModel(GNN([SAGE(4, 16), SAGE(16, 16)]), 16)
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3]), dst=torch.tensor([1, 2]), num_src=5)
        >>> rows = model([topology] * 2, torch.randn(5, 4))
        >>> model.score(rows[[0, 3]], rows[[1, 2]], None).shape
        torch.Size([2])
    """

    def __init__(
        self,
        gnn: nn.Module,
        width: int,
        *,
        decoder: str = "dot",
        num_edge_types: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(gnn)
        require_arguments(self, width=width, dropout=dropout)
        require_choice(decoder, DECODERS, what="unknown decoder", where="LinkModel.decoder")
        self.decoder = decoder
        if decoder == "distmult":
            # Ones score as the product does.
            self.relations = nn.Parameter(torch.ones(max(1, num_edge_types), width))
        elif decoder == "mlp":
            self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        """A row for each vertex, [num_vertices, width]."""
        return self.gnn(hops, x)

    def score(self, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The logit of each link, [n], of rows [n, width] of its source and its destination, and of its type, int64 [n] or None."""
        if self.decoder == "dot":
            return product(src, dst, types)
        if self.decoder == "mlp":
            return self.head(src * dst).squeeze(-1)
        relations = self.relations if types is None else nn.functional.embedding(types, self.relations)
        return (src * relations * dst).sum(-1)


def decoder_of(name: str, graph: Graph) -> str:
    """The decoder that a configuration names; 'auto' is 'distmult' where edges have types, else 'dot'."""
    if name == "auto":
        return "distmult" if graph.num_edge_types else "dot"
    if name == "distmult" and not graph.num_edge_types:
        raise InputError(
            f"links have no types to tell apart: decoder = '{name}' (in graph '{graph.name}')",
            hint="Use decoder = 'dot' or 'mlp', or give the edges types.",
        )
    return name
