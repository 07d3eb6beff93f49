"""OnVertices: what models have in common that are made of a model of vertices."""

from __future__ import annotations

from torch import nn

from sagann.errors import require_type
from sagann.graph import Graph
from sagann.nn.model_call import VERTICES, check_call
from sagann.saga.layer import count_hops


class OnVertices(nn.Module):
    """A model of something else than vertices, whose ``gnn`` gives each vertex a row.

    Args:
        gnn: called as ``gnn(hops, x)``.
    """

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
