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

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sagann.errors import InputError, LayerError, SagannError, in_one_line, listed
from sagann.graph import Graph, Topology, add_self_loops, normalise, relabel
from sagann.interop.pyg_aggregations import aggregation_of
from sagann.interop.pyg_call import (
    CACHES_OF_ROWS,
    arguments_for,
    called,
    convs_of,
    first_run,
    forget_edges,
    parameters_of,
    run_in_pyg,
    run_twin,
    takes_data,
    takes_edge_index,
)
from sagann.interop.pyg_example import (
    EDGE_ARGUMENTS,
    NUM_ROWS,
    WithoutDropout,
    are_close,
    block_of,
    example_of,
    undisturbed,
    values_and_gradients,
    with_some_weights,
)
from sagann.interop.pyg_layer import PygLayer
from sagann.interop.pyg_rows import EdgeRows, StoredRow
from sagann.interop.pyg_walk import (
    DEGREE_WEIGHTS,
    WEIGHTS,
    EdgeIndex,
    PlannedWalk,
    Preparation,
    ReadingWalk,
    SampledWalk,
    Walk,
    changed,
    preparation_of,
    shadowed,
)
from sagann.saga.engine import NaiveEngine, using_engine
from sagann.saga.users_lines import line_of_error


def is_written_for_pyg(model: nn.Module) -> bool:
    """Whether a model has layers of PyG, and is called as models of PyG are: with rows and edges, or with a graph alone. PyG is not loaded."""
    if not any(True for _ in convs_of(model)):
        return False
    return takes_edge_index(model) or takes_data(model)


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
            f"a model of PyTorch Geometric needs features: vertices have none (in graph '{graph.name}', for "
            f"model {type(model).__name__})",
            hint="Give the graph features, or write the model with sagann's layers and sagann.nn.EmbeddingEncoder.",
        )
    return PygGraphModel(model, graph) if _gives_graphs(model, graph) else PygModel(model, graph)


class PygModel(nn.Module):
    """A model of PyG as sagann calls it: ``model(hops, x)``, x [num_src, F] -> [num_dst, F']. Made by :func:`from_pyg_model`."""

    gives_graphs = False
    "Whether the model gives each graph a row, and not each vertex."

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
        self.reads_batch = self.gives_graphs or _reads_batch(model, graph)
        "Whether the model's rows depend on which vertices make up a graph."
        self._has_several = False
        "Whether the graph that was prepared last holds several graphs."
        self.not_sampled = ""
        "Why the model cannot walk the blocks of mini-batches; empty where it can."
        self._read(graph)

    @property
    def num_hops(self) -> int:
        """Number of topologies that ``forward`` walks."""
        return max(self.levels, default=-1) + 1

    def forward(self, hops: Sequence[Topology], x: Tensor, ptr: Tensor | None = None) -> Tensor:
        """Run the model; ``ptr`` are the offsets of several graphs, for a model that takes ``batch``."""
        if any(hop.num_dst != hop.num_given for hop in hops):
            self.require_sampled()
        if ptr is None and self.reads_batch and self._has_several:
            raise InputError(
                "the model is not told which vertices make up a graph: the prepared graph holds several, and "
                f"no offsets are given (in model {type(self.model).__name__})",
                hint="Pass them: model(hops, x, prepared.graph_ptr).",
            )
        return self._run(self._walk(hops), x, ptr)

    def require_sampled(self) -> None:
        """Refuse a model that cannot walk the blocks of mini-batches."""
        if self.not_sampled:
            raise LayerError(
                f"a model of PyTorch Geometric cannot walk mini-batches: {self.not_sampled} (in model "
                f"{type(self.model).__name__})",
                hint="Train it on the whole graph (without --sample), or give its layers pairs, (x, x[:num_dst]).",
            )

    def left_out(self, graph: Graph) -> str:
        """What the model asks for and the graph does not have, in a sentence that names edge data which the model does not get; or nothing."""
        passed, known = {EDGE_ARGUMENTS[name] for name in self.arguments}, parameters_of(self.model)
        unread = [name for name in graph.topology.edge_data if name not in passed]
        asked = [name for name in known if known[name].default is None and name not in (*self.arguments, "batch")]
        # Without other edge data, edges are unweighted. PyG's own models take much that no data has.
        asked = [name for name in asked if unread or name not in EDGE_ARGUMENTS]
        if not asked or self.user_class.__module__.startswith("torch_geometric."):
            return ""
        names = {stored: argument for argument, stored in EDGE_ARGUMENTS.items()}
        others = (
            f" Edge data {listed(unread)} are passed to arguments called {listed([names.get(each, each) for each in unread])}."
            if unread
            else ""
        )
        return f"{self.user_class.__name__} is trained without {listed(asked)}, which the graph has under no such name.{others}"

    def prepare(self, graph: Graph) -> Graph:
        """Add the self-loops, and the weights by degree, that the layers would make in every forward.

        Several self-loops of a vertex all count, where PyG keeps one of them.

        Args:
            graph: the first one says which edge data the model takes; others need the same.
        Raises:
            InputError: the graph lacks edge data that the model takes.
        """
        if not self._is_fixed:
            self._read(graph)
            self._is_fixed = True
        stored = [EDGE_ARGUMENTS[name] for name in self.arguments]
        if missing := [name for name in stored if name not in graph.topology.edge_data]:
            raise InputError(
                f"the graph lacks edge data that the model takes: {', '.join(missing)}; it has "
                f"{', '.join(graph.topology.edge_data) or 'none'} (in graph '{graph.name}', for model "
                f"{type(self.model).__name__})",
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

    def _walk(self, hops: Sequence[Topology]) -> PlannedWalk:
        return PlannedWalk(self.model, self._calls, self.levels, hops)

    def _run(self, walk: Walk, x: Tensor, graph_ptr: Tensor | None = None) -> Tensor:
        stored = {name: EdgeRows(StoredRow(EDGE_ARGUMENTS[name]), {}, walk.name_of) for name in self.arguments}
        for conv in convs_of(self.model):
            _require_usual(conv)
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

    def _read(self, graph: Graph) -> None:
        """See on made-up vertices what the model propagates, and compare its results with PyG's; again for a graph with other edge data."""
        offered = arguments_for(self.model, graph)
        if self.layers and offered == self._offered:
            return
        self._offered = offered
        self.arguments, whole, out = first_run(self.model, graph, of_graphs=self.reads_batch)
        example, x = example_of(graph, self.arguments, self.model, of_graphs=self.reads_batch, whole=whole)
        if out is None or any(map(is_lazy, self.model.parameters())):
            with _blaming(self.model, *_IN_PYG):
                _, twin = run_twin(self.model, self.arguments, example, x)
            # Some parameters get their shapes in the first forward.
            self.model.load_state_dict(twin.state_dict())
            example, x = example_of(graph, self.arguments, self.model, of_graphs=self.reads_batch, whole=whole)
        known_hops = self.num_hops if self.layers else None
        with undisturbed(self.model), using_engine(NaiveEngine()), _blaming(self.model, *_WITHOUT_EDGES):
            reading = ReadingWalk(self.model, with_some_weights(example.topology, like=x))
            self._run(reading, x, example.graph_ptr)
            self.layers, self.levels = nn.ModuleList(reading.layers), tuple(range(len(reading.layers)))
            self.preparation = self._common_preparation()
            self._compare(example, x)
            self._find_levels(graph, whole=whole)
        if known_hops not in (None, self.num_hops):
            raise changed(
                f"{self.num_hops} hops with edge data {', '.join(self.arguments) or 'none'}, {known_hops} before"
            )

    def _common_preparation(self) -> Preparation:
        """What all layers want of the graph."""
        wanted = {layer.conv: preparation_of(layer.conv) for layer in self._calls}
        kinds = set(wanted.values())
        if len(kinds) > 1:
            named = ", ".join(sorted({f"{type(conv).__name__}: {each}" for conv, each in wanted.items()}))
            raise LayerError(
                f"layers of PyTorch Geometric want the graph prepared in different ways: {named} (in model "
                f"{type(self.model).__name__})",
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

    def _compare(self, example: Graph, x: Tensor) -> None:
        """Refuse a model whose results, or their gradients, are not those of PyG."""
        twin = copy.deepcopy(self)
        forget_edges(twin.model)
        prepared = twin._prepared(example)
        hops = prepared.hops(twin.num_hops)

        def in_pyg() -> list[Tensor]:
            with _blaming(twin.model, *_IN_PYG):
                return values_and_gradients(
                    lambda x: run_in_pyg(twin.model, self.arguments, example, x), twin.model, x
                )

        def in_sagann(x: Tensor) -> Any:
            return twin._run(twin._walk(hops), x, example.graph_ptr)

        for training in (False, True):
            twin.train(training)
            with WithoutDropout():
                expected = in_pyg()
                found = values_and_gradients(in_sagann, twin.model, x)
                if are_close(found, expected):
                    continue
                # A model that draws random numbers of its own is compared in evaluation alone.
                if training and not are_close(in_pyg(), expected):
                    continue
            raise LayerError(
                "a model gives other numbers than with PyTorch Geometric: its layers are "
                f"{', '.join(dict.fromkeys(type(layer.conv).__name__ for layer in self._calls))}{', in training' if training else ''} "
                f"(in model {type(self.model).__name__})",
                hint="One of them changes its edges, weighs messages otherwise than in proportion, stops gradients, or gets no edge_weight where "
                "others get it. Build it without that, or write it as sagann.SagaLayer.",
            )

    def _find_levels(self, graph: Graph, *, whole: bool) -> None:
        """Find out which layers walk the same hop of a mini-batch, if mini-batches with all in-edges give the rows of the whole graph."""
        num_rows = NUM_ROWS + len(self.layers)
        example, x = example_of(
            graph, self.arguments, self.model, of_graphs=self.reads_batch, whole=whole, num_rows=num_rows
        )
        prepared = self._prepared(example)
        # Seeds have the first numbers in a mini-batch, and may have the last ones in the graph.
        order = torch.arange(num_rows) if self.reads_batch else torch.arange(num_rows - 1, -1, -1)
        topology, numbered = prepared.topology, relabel(prepared, order).topology
        blocks = [block_of(topology, num_rows - level) for level in range(len(self.layers))]
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


class PygGraphModel(PygModel):
    """A model of PyG that gives each graph a row: ``model(hops, x, graph_ptr)`` -> [num_graphs, F']."""

    gives_graphs = True

    def forward(self, hops: Sequence[Topology], x: Tensor, graph_ptr: Tensor) -> Tensor:  # type: ignore[override]
        """Run the model."""
        out, num_graphs = self._run(self._walk(hops), x, graph_ptr), len(graph_ptr) - 1
        if isinstance(out, Tensor) and 0 < len(out) < num_graphs and int(graph_ptr[len(out)]) == len(x):
            raise LayerError(
                f"a pool of PyTorch Geometric leaves out the last graphs, which have no vertices: {len(out)} "
                f"rows for {num_graphs} graphs (in model {type(self.model).__name__})",
                hint="Give these graphs a vertex, or leave them out of the dataset.",
            )
        return out


_IN_PYG = (
    f"a model of PyTorch Geometric does not run with it on {NUM_ROWS} made-up vertices",
    "Let it run with PyTorch Geometric first, on any number of vertices with floating numbers as features. For a learned row per vertex, write it with "
    "sagann's layers and sagann.nn.EmbeddingEncoder.",
)
_WITHOUT_EDGES = (
    f"a model of PyTorch Geometric does not run without its edges on {NUM_ROWS} made-up vertices",
    "Let it pass edge_index on to its layers alone, and compute nothing with it; or write the layer as sagann.SagaLayer.",
)


@contextmanager
def _blaming(model: nn.Module, how: str, hint: str) -> Iterator[None]:
    """Inside the ``with`` block, an exception of any kind becomes an error that begins with it, and names its line."""
    try:
        yield
    except LayerError:
        raise
    except Exception as error:
        where = f"model {type(model).__name__}, {line_of_error(error)}"
        if isinstance(error, SagannError):
            raise LayerError(f"{error.message}; {how} (in {where})", hint=error.hint) from error
        raise LayerError(f"{in_one_line(error).rstrip('.')}: {how} (in {where})", hint=hint) from error


def _require_usual(conv: Any) -> None:
    """Refuse a layer of PyG that does what a SAGA layer does not."""
    from torch_geometric.nn import MessagePassing

    found = ""
    if type(conv).aggregate is not MessagePassing.aggregate:
        found = "it has an aggregate of its own"
    elif conv.flow != "source_to_target":
        found = f"flow = {conv.flow!r}"
    elif getattr(conv, "improved", False):
        found = "improved = True"
    elif getattr(conv, "cached", False) and any(hasattr(conv, name) for name in CACHES_OF_ROWS):
        found = "cached = True"
    elif conv.explain or any(
        hooks
        for name, hooks in vars(conv).items()
        if name.endswith("_hooks") and name.startswith(("_propagate", "_message", "_aggregate", "_edge_update"))
    ):
        found = "hooks of PyG, or an explanation"
    if found:
        raise LayerError(
            f"a layer of PyTorch Geometric does what a SAGA layer cannot: {found} (in layer {type(conv).__name__})",
            hint="Build it without, or write it as sagann.SagaLayer: 'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
        )


def _gives_graphs(model: nn.Module, graph: Graph) -> bool:
    """Whether a model that may be told which vertices make up a graph gives each graph a row."""
    takes_batch = "batch" in parameters_of(model)
    if not takes_batch and not takes_data(model):
        return False
    *_, out = first_run(model, graph, of_graphs=True)
    return takes_batch if out is None else isinstance(out, Tensor) and len(out) != NUM_ROWS


def _reads_batch(model: nn.Module, graph: Graph) -> bool:
    """Whether a model's rows depend on which vertices make up a graph."""
    if "batch" not in parameters_of(model) and not takes_data(model):
        return False
    of_one, of_several = (first_run(model, graph, of_graphs=several)[-1] for several in (False, True))
    return isinstance(of_several, Tensor) and (of_one is None or not are_close([of_one], [of_several]))


def _without(graph: Graph, name: str) -> Graph:
    """The graph without one of its edge data."""
    known = graph.topology
    if name not in known.edge_data:
        return graph
    left = {other: rows for other, rows in known.edge_data.items() if other != name}
    return graph.with_topology(
        Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, edge_data=left, validate=False)
    )
