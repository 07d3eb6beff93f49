"""GraphModel: a model of vertices made into one of whole graphs, by pooling and a head."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import Tensor, nn

from sagann.errors import require_type
from sagann.graph import Topology
from sagann.interop.pyg_call import parameters_of
from sagann.nn.on_vertices import OnVertices
from sagann.nn.pooling import check_pool, pool


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
