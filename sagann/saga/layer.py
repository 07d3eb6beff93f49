"""SagaLayer: a GNN layer written as Scatter, ApplyEdge, Gather, ApplyVertex.

Scatter and Gather are the system's; ApplyEdge and ApplyVertex are the user's, in ordinary PyTorch, and
autograd is automatic. The same layer runs on a whole graph and on a block.

References:
    Ma et al., NGra, 2018, Sec. 2; Ma et al., NeuGraph, USENIX ATC 2019, Sec. 2.2. We differ in two points. Scatter
    passes the rows of an endpoint only if ApplyEdge reads them. The accumulators sum, max and concat are the papers';
    we add mean, min, var, std, mul and softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, require_type
from sagann.graph.graph import Graph
from sagann.graph.rows import csr_tensor
from sagann.graph.topology import Topology
from sagann.kernels.feature_rows import FeatureRows
from sagann.processes import require_own_threads
from sagann.saga.edge import Accumulators, Edge, check_accumulator, named
from sagann.saga.engine import EdgeData, VertexRows, current_engine
from sagann.saga.independence import check_functions, check_signatures
from sagann.saga.row_runs import sampled_rows

_PYG_NAMES = {"message": "apply_edge", "message_and_aggregate": "apply_edge", "update": "apply_vertex"}
"""PyG's names of a layer's functions, and the names here."""


class SagaLayer(nn.Module):
    """Base class of every layer: define ``apply_edge`` and ``apply_vertex``, name an ``accumulator``.

    ``layer(topology, x)`` takes x [num_src, F] and returns [num_dst, F']; the destination vertices are the
    first ``num_dst`` rows of x. ``layer(topology, {"x": x, "pos": pos})`` takes several tensors of vertex rows: ``edge.src``,
    ``edge.dst`` and ``vertex`` then are mappings with these names. The first call with a new shape checks that ApplyEdge treats
    edges, and ApplyVertex vertices, independently.

    Raises:
        LayerError: a function has PyG's name, so nothing would run it, or takes other arguments than it is given; an accumulator
            is unknown; a function mixes rows or branches on their values (the message names operator and line); a result has
            the wrong form; or the arrays of the topology were changed in place.
        InputError: x does not fit the topology, or the topology lacks the edge data that the layer reads.

    Example:
        >>> import torch
        >>> class MeanOfNeighbours(SagaLayer):
        ...     accumulator = "mean"
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([2, 2]), num_src=3)
        >>> MeanOfNeighbours()(topology, torch.tensor([[1.0], [3.0], [9.0]]))
        tensor([[0.],
                [0.],
                [2.]])
    """

    accumulator: Accumulators = "sum"
    """How Gather reduces messages: sum, mean, max, min, var, std, mul, softmax or concat.

    A tuple such as ("mean", "std") reduces one message several times; the results are concatenated in the last
    dimension. A mapping such as {"total": "sum", "top": "max"} has the accumulators of several messages by name:
    ApplyEdge then returns a dict of messages, and ``accum`` is a dict of the gathered rows."""
    edge_data: ClassVar[str | tuple[str, ...] | None] = None
    """Name of the topology's edge data ('weight', 'type', ...) that ApplyEdge reads as ``edge.data``, or None. With a
    tuple of several names, ApplyEdge reads each as ``edge.data[name]``."""
    max_degree: int | None = None
    "Width of the concat accumulator, in edges."

    def __init__(self) -> None:
        super().__init__()
        if type(self).forward is SagaLayer.forward:
            # A layer with a forward of its own may call its functions as it likes.
            _check_names(type(self))
            check_signatures(self, "apply_edge", "apply_vertex", "prepare")

    @staticmethod
    def prepare(graph: Graph) -> Graph:
        """Add to a graph what this layer needs, such as self-loops or degree weights; by default nothing.

        A Trainer calls this on every graph before it trains or predicts.
        """
        return graph

    def apply_edge(self, edge: Edge) -> Any:
        """Compute a message from each edge: a row [num_edges, ...]; by default the source's row.

        With the softmax accumulator: (score [num_edges] or [num_edges, H], value [num_edges, (H,) D]). With several messages: a
        dict of messages by name.
        """
        return edge.src

    def apply_vertex(self, vertex: Any, accum: Any) -> Tensor:
        """Compute the new row of each destination from its old row ``vertex`` and its gathered messages ``accum``."""
        return accum

    def forward(self, topology: Topology, x: Tensor | FeatureRows | Mapping[str, Tensor]) -> Tensor:
        """Run the four stages: x [num_src, F], dense or ``torch.sparse_csr``, or dense tensors by name -> [num_dst, F']."""
        require_own_threads()
        where = f"layer {type(self).__name__}"
        check_accumulator(self.accumulator, self.max_degree, where)
        if isinstance(x, Tensor) and x.layout == torch.sparse_csr and not x.requires_grad:
            x = FeatureRows(x)
        rows: VertexRows = x if isinstance(x, Mapping) else {"": x}
        if not rows or not all(isinstance(name, str) and (name.isidentifier() or rows is not x) for name in rows):
            raise InputError(
                f"vertex rows need names: {', '.join(map(repr, rows)) or 'no tensor'}, expected valid names of Python variables (in {where})",
                hint="Pass tensors by name: layer(topology, {'x': x, 'pos': pos}).",
            )
        for name, each in rows.items():
            check_input(topology, each, f"{where}, rows '{name}'" if name else where)
        topology.require_unwritten()
        return current_engine().run(self, topology, rows, self._read_edge_data(topology, where))

    def maps_features(self, topology: Topology, features: Tensor) -> bool:
        """Whether only linear maps read the layer's input, so that sparse features can stay sparse.

        Args:
            topology: topology with the edge data that the layer reads.
            features: [num_src, F]; their values are not read. They may lie on another device than the layer.
        """
        if type(self).forward is not SagaLayer.forward:
            return False
        data = self._read_edge_data(topology, f"layer {type(self).__name__}")
        device = next((tensor.device for tensor in (*self.parameters(), *self.buffers())), features.device)
        if device != features.device:
            # The graph is moved later. The layer is looked at where it lies, with a few rows like those of the graph.
            features = _no_rows_of(features, device)
            data = {name: sampled_rows(rows).to(device) for name, rows in data.items()}
        return current_engine().maps_features(self, FeatureRows(features), data)

    def check_functions(self, x: Mapping[str, Tensor], data: EdgeData, *, again: bool = False) -> None:
        """Check that ApplyEdge treats edges, and ApplyVertex vertices, independently, for rows of these forms.

        Engines call this before they run a layer. With ``again``, the functions are checked even if they have passed
        before, because the layer may have changed.
        """
        check_functions(self, x, data, again=again)

    def edge_data_names(self) -> Mapping[str, str]:
        """Names in the topology of the edge data that the layer reads, by their names in ``edge.data``."""
        if isinstance(self.edge_data, tuple):
            return {name: name for name in self.edge_data}
        return named(self.edge_data)

    def _read_edge_data(self, topology: Topology, where: str) -> EdgeData:
        if self.edge_data is None:
            return {}
        names = self.edge_data if isinstance(self.edge_data, tuple) else (self.edge_data,)
        for name in names:
            hint = "Name one (edge_data = 'weight'), or several in a tuple (edge_data = ('type', 'weight'))."
            require_type(name, str, where=f"{where}, edge_data", hint=hint)
            if name in topology.edge_data:
                continue
            present, plain = ", ".join(sorted(topology.edge_data)) or "none", name.removeprefix("edge_")
            hint = "Call graph = model.prepare(graph) first where the layer has a prepare, as GCN; else attach it with topology.with_edge_data(...)."
            if plain in topology.edge_data:
                hint = f"Leave out the prefix: edge_data = '{plain}'."
            raise InputError(
                f"the topology lacks the edge data that the layer reads: '{name}' is missing; present: {present} (in {where})",
                hint=hint,
            )
        return {key: topology.edge_data[name] for key, name in self.edge_data_names().items()}


def _no_rows_of(features: Tensor, device: torch.device) -> Tensor:
    """Features of the same width, layout and type without a row, on another device."""
    if features.layout != torch.sparse_csr:
        return features.new_empty((0, *features.shape[1:]), device=device)
    ids, values = features.crow_indices().new_zeros(1, device=device), features.values().new_empty(0, device=device)
    return csr_tensor(ids, ids[:0], values, num_columns=features.shape[1])


def count_hops(model: nn.Module) -> int:
    """Number of topologies a model walks: its ``num_hops``, an integer of at least 0, or its number of SAGA layers."""
    num_hops = getattr(model, "num_hops", None)
    if num_hops is None:
        return sum(isinstance(module, SagaLayer) for module in model.modules())
    if isinstance(num_hops, bool) or not isinstance(num_hops, int) or num_hops < 0:
        raise InputError(
            f"a model's num_hops is no count: {num_hops!r}, expected an integer of at least 0 (in {type(model).__name__}.num_hops)",
            hint="Set it to the number of layers that walk the graph, or leave it out.",
        )
    return num_hops


def _check_names(layer: type[SagaLayer]) -> None:
    for name, here in _PYG_NAMES.items():
        if callable(getattr(layer, name, None)) and getattr(layer, here) is getattr(SagaLayer, here):
            raise LayerError(
                f"the layer has a function of PyG's, which nothing runs: '{name}', and no '{here}' (in layer {layer.__name__})",
                hint=f"Write it as {here}: apply_edge(edge), with edge.src for x_j and edge.dst for x_i; "
                "apply_vertex(vertex, accum). If it is for something else, give it another name.",
            )


def check_input(topology: Topology, x: Tensor | FeatureRows, where: str) -> None:
    """Refuse what is no topology, and rows that do not fit it; ``where`` is what reads them."""
    require_type(
        topology,
        Topology,
        where=where,
        hint="Call layer(topology, x), with graph.topology, or Topology.from_coo(src=edge_index[0], dst=edge_index[1], "
        "num_src=num_vertices); a model is called with graph.hops(model.num_hops).",
    )
    is_tensor = isinstance(x, Tensor) and x.layout == torch.strided
    if not (is_tensor or isinstance(x, FeatureRows)) or x.ndim < 2 or x.shape[0] != topology.num_given:
        form = f"{x.layout} {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InputError(
            f"vertex features do not fit the topology: {form}, expected a tensor [{topology.num_given}, F], "
            f"dense or torch.sparse_csr (in {where})",
            hint="Pass one row per source vertex; bring missing features in through an encoder.",
        )
    if x.device != topology.device:
        raise InputError(
            f"features and topology are on different devices: {x.device} and {topology.device} (in {where})",
            hint="Move both with .to(device).",
        )
