"""PygModel: a model that is written for PyTorch Geometric, called and trained like one that is written for sagann.

The model runs as it is, and gets a stand-in for its ``edge_index`` which it may pass on to its layers alone. Where a layer calls
``propagate`` with the stand-in, a SAGA layer runs the layer's own ``message`` (:mod:`sagann.interop.pyg_layer`). So model, parameters
and names of weights are the user's; what is propagated is compiled, streamed and divided among workers as that of any other model.

When the adapter is made, the model runs on a few made-up vertices (:mod:`sagann.interop.pyg_example`), which shows what its layers propagate
and in which order. Then its results and their gradients are compared with those that PyG computes of the same vertices, in evaluation, and
in training without dropout: a model whose numbers differ is refused. A model that draws random numbers of its own in training is compared in
evaluation alone.

Self-loops, and weights by degree, are made once for the graph (:meth:`PygModel.prepare`), and not in every forward.

References:
    Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, ICLR workshop 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sagann.errors import InputError, LayerError, in_one_line, line_of_error, listed
from sagann.graph import Graph, Topology, add_self_loops, normalise, relabel
from sagann.interop.pyg_example import (
    IN_PYG,
    NUM_ROWS,
    WITHOUT_EDGES,
    FirstRun,
    WithoutDropout,
    are_close,
    arguments_for,
    block_of,
    first_run,
    layer_errors,
    rows_of,
    run_in_pyg,
    undisturbed,
    values_and_gradients,
)
from sagann.interop.pyg_layer import PygLayer, aggregation_of, require_usual
from sagann.interop.pyg_rows import EdgeRows, StoredRow
from sagann.interop.pyg_walk import (
    DEGREE_WEIGHTS,
    WEIGHTS,
    EdgeIndex,
    Preparation,
    ReadingWalk,
    SampledWalk,
    Walk,
    changed,
    preparation_of,
    shadowed,
)
from sagann.nn.model_call import EDGE_ARGUMENTS, called, convs_of, is_written_for_pyg, may_take_batch, parameters_of
from sagann.saga.engine import NaiveEngine, using_engine


def from_pyg_model(model: nn.Module, graph: Graph) -> PygModel:
    """A model of PyG as sagann calls it, for graphs with the features and edge data of this one.

    ``sagann.Trainer`` does this by itself. In a loop of your own::

        model = sagann.interop.from_pyg_model(model, graph)
        graph = model.prepare(graph)
        logits = model(graph.hops(model.num_hops), graph.features)

    Args:
        model: its ``forward`` takes rows and ``edge_index``, and what it reads of ``edge_weight``, ``edge_attr`` and ``edge_type``, which are
            the graph's edge data ``weight``, ``attr`` and ``type``; where graphs are learned, ``batch`` besides. Or it takes a graph alone, of which
            it reads these. It is trained in place, and PyG can use it as before.
        graph: its edges are not read.
    Raises:
        LayerError: the model computes with ``edge_index`` itself; a layer gathers in a way that is not known; the layers want the graph prepared
            in different ways; or the results differ from PyG's.
        InputError: the model has no layer of PyG, or the graph no features.
    """
    if not is_written_for_pyg(model):
        raise InputError(
            f"no model of PyTorch Geometric: a {type(model).__name__} that does not take edge_index, or has no "
            "MessagePassing layer (in from_pyg_model)",
            hint="Pass a model whose forward takes (x, edge_index), or a Data object.",
        )
    if graph.num_features == 0:
        raise InputError(
            f"a model of PyTorch Geometric needs features: vertices have none (in graph '{graph.name}', for model {type(model).__name__})",
            hint="Give the graph features, or write the model with sagann's layers and sagann.nn.EmbeddingEncoder.",
        )
    return PygModel(model, graph)


class PygModel(nn.Module):
    """A model of PyG as sagann calls it: ``model(hops, x)``, x [num_src, F] -> [num_dst, F']; or where it pools by itself,
    ``model(hops, x, graph_ptr)`` -> [num_graphs, F']. Made by :func:`from_pyg_model`."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.model = model
        self.user_class = type(model)
        "Class of the model of PyG, which errors and run folders name."
        self.layers = nn.ModuleList()
        "The calls of ``propagate``, in their order."
        self.levels: tuple[int, ...] = ()
        "Number of the hop that each of them walks."
        self.arguments: tuple[str, ...] = ()
        "The arguments of the model that get edge data."
        self._offered: tuple[str, ...] = ()
        "Those that the graph has edge data for, or that the model needs."
        self.preparation = Preparation()
        self._is_fixed = False
        "Whether a graph was prepared, whose edge data are those that the model gets from then on."
        self._has_several = False
        "Whether the graph that was prepared last holds several graphs."
        self.not_sampled = ""
        "Why the model cannot walk the blocks of mini-batches; empty where it can."
        self.gives_graphs = False
        "Whether the model gives each graph a row, and not each vertex."
        self.reads_batch = False
        "Whether the model's rows depend on which vertices make up a graph."
        first = first_run(model, graph, of_graphs=False)
        if may_take_batch(model):
            alone, first = first, first_run(model, graph, of_graphs=True)
            gives_rows = isinstance(first.out, Tensor)
            # A model that needs other things as well runs in neither way.
            fails = first.out is None and "batch" in parameters_of(model)
            self.gives_graphs = fails or (gives_rows and len(first.out) != NUM_ROWS)
            is_same = gives_rows and alone.out is not None and are_close([alone.out], [first.out])
            self.reads_batch = self.gives_graphs or (gives_rows and not is_same)
            first = first if self.reads_batch else alone
        self._read(graph, first)

    @property
    def num_hops(self) -> int:
        """Number of topologies that ``forward`` walks."""
        return max(self.levels, default=-1) + 1

    def forward(self, hops: Sequence[Topology], x: Tensor, graph_ptr: Tensor | None = None) -> Tensor:
        """Run the model; ``graph_ptr`` are the offsets of several graphs, for a model that takes ``batch``."""
        if any(hop.num_dst != hop.num_given for hop in hops):
            self.require_sampled()
        if graph_ptr is None and self.reads_batch and self._has_several:
            raise InputError(
                "the model is not told which vertices make up a graph: the prepared graph holds several, and "
                f"no offsets are given (in model {type(self.model).__name__})",
                hint="Pass them: model(hops, x, prepared.graph_ptr).",
            )
        out = self._run(self._walk(hops), x, graph_ptr)
        if not self.gives_graphs or graph_ptr is None:
            return out
        num_graphs = len(graph_ptr) - 1
        if isinstance(out, Tensor) and 0 < len(out) < num_graphs and int(graph_ptr[len(out)]) == len(x):
            raise LayerError(
                f"a pool of PyTorch Geometric leaves out the last graphs, which have no vertices: {len(out)} "
                f"rows for {num_graphs} graphs (in model {type(self.model).__name__})",
                hint="Give these graphs a vertex, or leave them out of the dataset.",
            )
        return out

    def require_sampled(self) -> None:
        """Refuse a model that cannot walk the blocks of mini-batches."""
        if self.not_sampled:
            raise LayerError(
                f"a model of PyTorch Geometric cannot walk mini-batches: {self.not_sampled} (in model {type(self.model).__name__})",
                hint="Train it on the whole graph (without --sample), or give its layers pairs, (x, x[:num_dst]).",
            )

    def left_out(self, graph: Graph) -> str:
        """What the model asks for and the graph does not have, and edge data that the model does not get, in sentences; or nothing."""
        passed, known = {EDGE_ARGUMENTS[name] for name in self.arguments}, parameters_of(self.model)
        unread = [name for name in graph.topology.edge_data if name not in passed]
        asked = [name for name in known if known[name].default is None and name not in (*self.arguments, "batch")]
        # Without other edge data, edges are unweighted. PyG's own models take much that no data has.
        asked = [name for name in asked if unread or name not in EDGE_ARGUMENTS]
        if not asked or self.user_class.__module__.startswith("torch_geometric."):
            return ""
        arguments = {stored: argument for argument, stored in EDGE_ARGUMENTS.items()}
        names = listed([arguments.get(name, name) for name in unread])
        others = f" Edge data {listed(unread)} are passed to arguments called {names}." if unread else ""
        return f"{self.user_class.__name__} is trained without {listed(asked)}, which the graph has under no such name.{others}"

    def prepare(self, graph: Graph) -> Graph:
        """Add the self-loops, and the weights by degree, that the layers would make in every forward.

        Several self-loops of a vertex all count, where PyG keeps one of them.

        Args:
            graph: the first one says which edge data the model takes; others need the same.
        """
        if not self._is_fixed:
            if arguments_for(self.model, graph) != self._offered:
                num_hops = self.num_hops
                self._read(graph, first_run(self.model, graph, of_graphs=self.reads_batch))
                if self.num_hops != num_hops:
                    names = ", ".join(self.arguments) or "none"
                    raise changed(f"{self.num_hops} hops with edge data {names}, {num_hops} before")
            self._is_fixed = True
        stored = [EDGE_ARGUMENTS[name] for name in self.arguments]
        if missing := [name for name in stored if name not in graph.topology.edge_data]:
            raise InputError(
                f"the graph lacks edge data that the model takes: {', '.join(missing)}; it has "
                f"{', '.join(graph.topology.edge_data) or 'none'} (in graph '{graph.name}', for model {type(self.model).__name__})",
                hint="Give the graph this edge data, as the model's first graph had it.",
            )
        self._has_several = graph.num_graphs > 1
        return self._prepared(graph)

    def _prepared(self, graph: Graph) -> Graph:
        wanted = self.preparation
        if wanted.weighs and "edge_weight" not in self.arguments:
            # Weights that the model does not take count for nothing.
            graph = _without(graph, WEIGHTS.name)
        if wanted.adds_loops:
            graph = add_self_loops(graph, leave_out=True, doubles=wanted.doubles_loops)
        if not wanted.weighs:
            return graph
        dtype = torch.float32 if graph.features is None else graph.features.dtype
        return normalise(graph, "symmetric", name=DEGREE_WEIGHTS, dtype=dtype)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the model of PyG, with its names."""
        return self.model.state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load what :meth:`state_dict` gives: this module's own names lead to the same tensors."""
        names = {id(module): name for name, module in self.model.named_modules()}
        # The layers' modules are modules of the model.
        homes = [("model.", "")]
        for home, module in self.layers.named_modules(remove_duplicate=False):
            if id(module) in names:
                homes.append((f"layers.{home}.", f"{names[id(module)]}."))
        given = {name: state_dict.pop(name) for name in list(state_dict) if name.startswith(prefix)}
        for home, of_model in homes:
            start = prefix + of_model.removeprefix(".")
            found = {name.removeprefix(start): value for name, value in given.items() if name.startswith(start)}
            state_dict.update({f"{prefix}{home}{name}": value for name, value in found.items()})
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    def _calls(self) -> list[PygLayer]:
        return [layer for layer in self.layers if isinstance(layer, PygLayer)]

    def _walk(self, hops: Sequence[Topology]) -> Walk:
        return Walk(self.model, self._calls, self.levels, hops)

    def _run(self, walk: Walk, x: Tensor, graph_ptr: Tensor | None = None) -> Tensor:
        stored = {name: EdgeRows(StoredRow(EDGE_ARGUMENTS[name]), {}, walk.name_of) for name in self.arguments}
        for conv in convs_of(self.model):
            require_usual(conv)
        for layer in self._calls:
            if (aggregation_of(layer.conv), preparation_of(layer.conv)) != (layer.aggregation, self.preparation):
                raise changed(f"{type(layer.conv).__name__} gathers otherwise than it did, or from other edges")
        try:
            with shadowed(self.model) as model:
                out = called(model, x, EdgeIndex(walk), stored, graph_ptr)
            walk.end()
        except LayerError as error:
            found = LayerError(f"{error.message}, {line_of_error(error)}", hint=error.hint)
            raise found.with_traceback(error.__traceback__) from error.__cause__
        return out

    def _read(self, graph: Graph, first: FirstRun) -> None:
        """See on made-up vertices what the model propagates, and compare its results with PyG's."""
        self._offered, self.arguments = arguments_for(self.model, graph), first.arguments
        if first.error is not None:
            with layer_errors(self.model, *IN_PYG):
                raise first.error
        if any(map(is_lazy, (*self.model.parameters(), *self.model.buffers()))):
            # Some parameters get their shapes in the first forward.
            self.model.load_state_dict(first.twin.state_dict())
        example, mode = first.example(), self.training
        with undisturbed(self.model), using_engine(NaiveEngine()), layer_errors(self.model, *WITHOUT_EDGES):
            self.layers = self._layers_on(example)
            self.levels = tuple(range(len(self.layers)))
            self.preparation = self._common_preparation()
            for training in (False, True):
                self._compare(example, training=training)
            self.eval()
            self._find_levels(first.example(num_rows=NUM_ROWS + len(self.layers)))
            self.train(mode)

    def _layers_on(self, example: Graph) -> nn.ModuleList:
        """The calls of ``propagate`` on made-up vertices."""
        topology, x = example.topology, rows_of(example)
        # Weights by degree that no edges have, but different ones.
        weights = torch.linspace(0.5, 1.0, topology.num_edges, dtype=x.dtype, device=x.device)
        walk = ReadingWalk(self.model, topology.with_edge_data(**{DEGREE_WEIGHTS: weights}))
        # The layers of a graph with other edge data are read anew.
        self.layers = nn.ModuleList()
        self._run(walk, x, example.graph_ptr)
        return nn.ModuleList(walk.layers)

    def _common_preparation(self) -> Preparation:
        """What all layers want of the graph."""
        wanted = {layer.conv: preparation_of(layer.conv) for layer in self._calls}
        kinds = set(wanted.values())
        if len(kinds) > 1:
            named = ", ".join(sorted({f"{type(conv).__name__}: {each}" for conv, each in wanted.items()}))
            raise LayerError(
                f"layers of PyTorch Geometric want the graph prepared in different ways: {named} (in model {type(self.model).__name__})",
                hint="Add self-loops to the graph, and build the layers with add_self_loops=False and normalize=False where they have them.",
            )
        found = kinds.pop() if kinds else self.preparation
        read = {name for layer in self._calls for name in layer.edge_data or ()}
        if found.adds_loops and (unknown := read - {WEIGHTS.name, DEGREE_WEIGHTS}):
            raise LayerError(
                "edge data has no value for self-loops: the layers add self-loops, and read "
                f"{', '.join(sorted(unknown))} (in model {type(self.model).__name__})",
                hint="Build the layers with add_self_loops=False, and add loops with their data to the graph if you want them.",
            )
        return found

    def _compare(self, example: Graph, *, training: bool) -> None:
        """Refuse a model whose results, or their gradients, are not those of PyG."""
        self.train(training)
        hops, x = self._prepared(example).hops(self.num_hops), rows_of(example)

        def in_pyg() -> list[Tensor]:
            with layer_errors(self.model, *IN_PYG):
                return values_and_gradients(
                    lambda x: run_in_pyg(self.model, self.arguments, example, x), self.model, x
                )

        with WithoutDropout():
            expected = in_pyg()
            found = values_and_gradients(lambda x: self._run(self._walk(hops), x, example.graph_ptr), self.model, x)
            # A model that draws random numbers of its own is compared in evaluation alone.
            if are_close(found, expected) or (training and not are_close(in_pyg(), expected)):
                return
        raise LayerError(
            "a model gives other numbers than with PyTorch Geometric: its layers are "
            f"{', '.join(dict.fromkeys(type(layer.conv).__name__ for layer in self._calls))}{', in training' if training else ''} "
            f"(in model {type(self.model).__name__})",
            hint="One of them changes its edges, weighs messages otherwise than in proportion, stops gradients, or gets no edge_weight where "
            "others get it. Build it without that, or write it as sagann.SagaLayer.",
        )

    def _find_levels(self, example: Graph) -> None:
        """Find out which layers walk the same hop of a mini-batch, if mini-batches with all in-edges give the rows of the whole graph."""
        prepared, x, num_rows = self._prepared(example), rows_of(example), example.num_vertices
        # Seeds have the first numbers in a mini-batch, and may have the last ones in the graph.
        order = torch.arange(num_rows) if self.reads_batch else torch.arange(num_rows - 1, -1, -1)
        numbered = relabel(prepared, order).topology
        blocks = [block_of(prepared.topology, num_rows - level) for level in range(len(self.layers))]
        walk = SampledWalk(self.model, self._calls, blocks)
        try:
            found = self._run(walk, x, example.graph_ptr)
            right = self._run(self._walk([numbered] * len(self.layers)), x[order], example.graph_ptr)[order]
        except Exception as error:  # noqa: BLE001  (of any kind: rows do not fit)
            self.not_sampled = in_one_line(error)
            return
        self.not_sampled = "its rows depend on other vertices than in-neighbours, or on the numbers of vertices"
        if are_close([found], [right[: len(found)]]):
            self.not_sampled, self.levels = "", tuple(walk.levels)


def _without(graph: Graph, name: str) -> Graph:
    """The graph without one of its edge data."""
    known = graph.topology
    if name not in known.edge_data:
        return graph
    left = {other: rows for other, rows in known.edge_data.items() if other != name}
    return graph.with_topology(
        Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, edge_data=left, validate=False)
    )
