"""GraphBatches: the batches of an epoch over many graphs, each of which is one topology.

A batch depends on the arguments, the number of its epoch and its own number alone. So a loop may start at any batch of any epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import Graph
from sagann.graph.feature_store import feature_store, read_rows, require_no_gradient
from sagann.graph.validate import validate_graphs
from sagann.ranges import require_integer
from sagann.runtime.loading.graph_batch import GraphBatch, side_by_side
from sagann.runtime.loading.minibatches import chosen, most_ahead, not_numbered, useful_ahead
from sagann.runtime.loading.pipeline import Pipeline
from sagann.runtime.loading.stages import Size, Stage
from sagann.sampling.batches import cut_seeds

_WHERE = "GraphBatches.graphs"


class GraphBatches:
    """The batches of many graphs: an iterable that has new ones in every epoch. PyG's ``DataLoader``, for graphs in one :class:`Graph`.

    ``for batch in batches`` goes through the next epoch, the first time through epoch 0; each graph is in one batch of an epoch. Batches
    are made ahead of the loop, on a thread that ends with the loop.

    Args:
        graph: several graphs in one (``graph_ptr``), as the model reads it: ``model.prepare(graph)`` for a model that has ``prepare``.
            Topology and features may be mapped from files, and features may be a feature store.
        batch_size: number of graphs in a batch; the last batch may have fewer.
        graphs: name of a split of graphs, whose graphs with a known answer are taken; or a mask, bool [num_graphs]; or distinct numbers of
            graphs; or None for all graphs.
        shuffle: take the graphs in another random order in each epoch.
        seed: seed of the order.
        drop_last: leave out a last batch that is smaller than the others.
        ahead: most batches that are made before they are asked for; 0 makes each one on the calling thread. None chooses
            (:func:`sagann.runtime.loading.minibatches.useful_ahead`). Does not change the batches. Where edge data learn, no batch is made ahead.
    Raises:
        InputError: an argument has the wrong form, the graph has no ``graph_ptr`` or an edge that joins two graphs, there is no graph to
            take, or features require a gradient.
    Example:
        >>> from sagann.graph import Topology
        >>> topology = Topology.from_coo(src=torch.tensor([0, 3]), dst=torch.tensor([1, 2]), num_src=5)
        >>> graph = Graph(topology=topology, graph_ptr=torch.tensor([0, 2, 4, 5]), graph_targets=torch.tensor([0.5, 1.5, 2.5]))
        >>> for batch in GraphBatches(graph, batch_size=2, graphs=None, shuffle=False):
        ...     print(batch.graphs.tolist(), batch.graph_ptr.tolist(), batch.topology, batch.graph_targets.tolist())
        [0, 1] [0, 2, 4] Topology(num_src=4, num_dst=4, num_edges=2) [0.5, 1.5]
        [2] [0, 1] Topology(num_src=1, num_dst=1, num_edges=0) [2.5]
    """

    def __init__(
        self,
        graph: Graph,
        *,
        batch_size: int = 32,
        graphs: str | Tensor | Sequence[int] | None = "train",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        ahead: int | None = None,
    ) -> None:
        hint = "Open it with sagann.load_graph, or make a sagann.Graph."
        require_type(graph, Graph, where="GraphBatches.graph", hint=hint)
        _require_graphs(graph)
        require_no_gradient(graph.features, where="GraphBatches.graph, features")
        if ahead is None:
            ahead = useful_ahead(graph, torch.device("cpu"))
        for name, value in (("batch_size", batch_size), ("ahead", ahead), ("seed", seed)):
            require_integer(value, name, where=f"GraphBatches.{name}")
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            require_type(flag, bool, where=f"GraphBatches.{name}", hint="Pass True or False.")
        self.graph = graph
        self.batch_size = batch_size
        self.graphs = (
            torch.arange(graph.num_graphs) if graphs is None else chosen(graph.graphs, graphs, where=_WHERE)
        )
        "Numbers of the graphs that are taken, int64."
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.ahead = most_ahead(graph, ahead)
        self._features = None if graph.features is None else feature_store(graph.features)
        self._next_epoch = 0
        if not len(self):
            raise InputError(
                f"an epoch has no batch: {len(self.graphs)} graphs, batch_size {batch_size} (in {_WHERE})",
                hint="Leave drop_last out, or lower batch_size."
                if len(self.graphs)
                else "Pass at least one graph.",
            )

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.graphs), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop go through this epoch."""
        require_integer(epoch, "epoch", where="GraphBatches.set_epoch")
        self._next_epoch = epoch

    def __getitem__(self, number: object) -> NoReturn:
        """Refuse to be indexed, as PyTorch's DataLoader does with a data set.

        Raises:
            InputError: always.
        """
        raise not_numbered(type(self).__name__)

    def __iter__(self) -> Iterator[GraphBatch]:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.batches(epoch)

    def batches(self, epoch: int, *, first: int = 0) -> Pipeline[GraphBatch]:
        """The batches of an epoch from a given one on: ``first`` is the number of batches that are done already.

        The result is an iterator with ``counters`` of its stage and ``close``.
        """
        require_integer(epoch, "epoch", where="GraphBatches.batches, epoch")
        require_integer(first, "batch", where="GraphBatches.batches, first")
        if first > len(self):
            raise InputError(
                f"the epoch has fewer batches: first is {first}, there are {len(self)} (in GraphBatches.batches)",
                hint="Start with a batch of the epoch, or with the next epoch.",
            )
        graphs = self.graphs_of(epoch)
        stage = Stage(name="load", work=lambda number: self.load(graphs[number]), size_of=_size_of)
        numbers, item = range(first, len(self)), f"epoch {epoch}, batch"
        return Pipeline(numbers, (stage,), ahead=self.ahead, item=item, receive=lambda batch: batch)

    def graphs_of(self, epoch: int) -> Sequence[Tensor]:
        """The graphs of each batch of an epoch, int64."""
        return cut_seeds(
            self.graphs,
            self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            drop_last=self.drop_last,
        )

    def load(self, graphs: Tensor) -> GraphBatch:
        """The batch of some graphs, int64 [n]."""
        topology, graph_ptr, vertices = side_by_side(self.graph, graphs)
        labels, targets = self.graph.graph_labels, self.graph.graph_targets
        return GraphBatch(
            topology=topology,
            features=None if self._features is None else read_rows(self._features, vertices),
            graph_ptr=graph_ptr,
            graphs=graphs,
            vertices=vertices,
            graph_labels=None if labels is None else labels.index_select(0, graphs),
            graph_targets=None if targets is None else targets.index_select(0, graphs),
        )


def _size_of(batch: GraphBatch) -> Size:
    return Size(rows=batch.num_vertices, num_bytes=sum(part.nbytes for part in batch.feature_arrays))


def _require_graphs(graph: Graph) -> None:
    where = f"graph '{graph.name}'"
    if graph.graph_ptr is None:
        raise InputError(
            f"there are no graphs to make batches of: one graph, without graph_ptr (in {where})",
            hint="Pass several graphs in one, with graph_ptr; batches of one graph's vertices are made by sagann.MiniBatches.",
        )
    if graph.topology.device.type != "cpu":
        raise InputError(
            "graphs are not in the processor's memory: they are on a device of type "
            f"'{graph.topology.device.type}' (in {where})",
            hint="Make batches of graph.to('cpu'), and move each with batch.to(device).",
        )
    validate_graphs(graph)
