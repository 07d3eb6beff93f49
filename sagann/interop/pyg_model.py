"""PygModel: a model that is written for PyTorch Geometric, called and trained like one that is written for sagann.

The model runs as it is, and gets a stand-in for its ``edge_index`` which it may pass on to its layers alone. Where a layer calls
``propagate`` with the stand-in, a SAGA layer runs the layer's own ``message`` (:mod:`sagann.interop.pyg_layer`). With an ``edge_index`` of
PyG the same layer does what it always did. So model, parameters and names of weights are the user's; what is propagated is compiled,
streamed and divided among workers as that of any other model.

When the adapter is made, the model runs on a few made-up vertices, which shows what its layers propagate and in which order. Then its
results are compared with those that PyG computes of the same vertices: a model whose numbers differ is refused.

Self-loops, and weights by degree, are made once for the graph (:meth:`PygModel.prepare`), and not in every forward.

References:
    Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, ICLR workshop 2019.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, in_one_line
from sagann.graph import Graph, Topology, add_self_loops, normalise
from sagann.graph.task import is_of_graphs
from sagann.interop.pyg_layer import EdgeRows, PygLayer, StoredRow
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
    routed,
)
from sagann.saga.engine import NaiveEngine, using_engine

EDGES = ("edge_index", "adj_t", "adj")
"Names of the argument after the rows."
_EDGE_ARGUMENTS = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "type"}
"Arguments of a model's forward, and the edge data that they are."
_NUM_ROWS, _NUM_EDGES = 13, 60
"Numbers of made-up vertices and edges."
_TOLERANCE = 1e-4
"Difference from PyG's results, relative to the largest of them."


def takes_edge_index(model: nn.Module) -> bool:
    """Whether a model's ``forward`` takes edges after its rows, as those of PyG do."""
    names = list(_parameters_of(model))
    return len(names) > 1 and names[1] in EDGES


def is_written_for_pyg(model: nn.Module) -> bool:
    """Whether a model has layers of PyG, and is called as models of PyG are: with rows and edges, or with a graph alone. PyG is not loaded."""
    if not any(True for _ in _convs_of(model)):
        return False
    return takes_edge_index(model) or _takes_data(model)


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
        InputError: the model has no layer of PyG.
    """
    if not is_written_for_pyg(model):
        raise InputError(
            "no model of PyTorch Geometric",
            value=f"a {type(model).__name__} that does not take edge_index, or has no MessagePassing layer",
            where="from_pyg_model",
            fix="Pass a model whose forward takes (x, edge_index), or a Data object.",
        )
    takes_graphs = _takes_data(model) or "batch" in _parameters_of(model)
    return PygGraphModel(model, graph) if is_of_graphs(graph) and takes_graphs else PygModel(model, graph)


class PygModel(nn.Module):
    """A model of PyG as sagann calls it: ``model(hops, x)``, x [num_src, F] -> [num_dst, F']. Made by :func:`from_pyg_model`."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.model = model
        self.user_class = type(model)
        "What is said of the model names this class."
        self.layers = nn.ModuleList()
        "The calls of ``propagate``, in their order."
        self.levels: tuple[int, ...] = ()
        "Number of the hop that each of them walks."
        self.arguments: tuple[str, ...] = ()
        "The arguments of the model that get edge data."
        self._offered: tuple[str, ...] = ()
        "Those that the graph has edge data for, or that the model needs."
        self.preparation = Preparation(adds_loops=False, weighs=False)
        self.not_sampled = ""
        "Why the model cannot walk the blocks of mini-batches; empty where it can."
        for conv in _convs_of(model):
            _require_usual(conv)
            routed(conv)
        self._read(graph)

    @property
    def num_hops(self) -> int:
        """Number of topologies that ``forward`` walks."""
        return max(self.levels, default=-1) + 1

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        """Run the model."""
        if self.not_sampled and any(hop.num_dst != hop.num_given for hop in hops):
            raise LayerError(
                "a model of PyTorch Geometric cannot walk mini-batches",
                value=self.not_sampled,
                where=f"model {type(self.model).__name__}",
                fix="Train it on the whole graph (without --sample), or give its layers pairs, (x, x[:num_dst]).",
            )
        return self._run(self._walk(hops), x)

    def prepare(self, graph: Graph) -> Graph:
        """Add the self-loops, and the weights by degree, that the layers would make in every forward."""
        self._read(graph)
        wanted = self.preparation
        if wanted.weighs and "edge_weight" not in self.arguments:
            # Weights that the model does not take count for nothing.
            graph = _without(graph, WEIGHTS.name)
        if wanted.adds_loops:
            graph = add_self_loops(graph, leave_out=True)
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
        stored = {name: EdgeRows(StoredRow(_EDGE_ARGUMENTS[name]), {}, walk.name_of) for name in self.arguments}
        return _called(self.model, x, EdgeIndex(walk), stored, graph_ptr)

    def _read(self, graph: Graph) -> None:
        """See on made-up vertices what the model propagates, and compare its results with PyG's; again for a graph with other edge data."""
        offered = _arguments_for(self.model, graph)
        if self.layers and offered == self._offered:
            return
        example, x = _example_of(graph, offered, self.model)
        known_hops = self.num_hops if self.layers else None
        with _undisturbed(self.model), using_engine(NaiveEngine()):
            expected, self.arguments = _by_pyg(self.model, example, x, offered)
            reading = ReadingWalk(self.model, _with_some_weights(example.topology, like=x))
            self._run(reading, x, example.graph_ptr)
            self.layers, self.levels = nn.ModuleList(reading.layers), tuple(range(len(reading.layers)))
            self._offered, self.preparation = offered, self._common_preparation()
            self._compare(example, x, expected)
            self._find_levels(example, x)
        if known_hops not in (None, self.num_hops):
            raise changed(f"{self.num_hops} hops with {', '.join(offered) or 'no edge data'}, {known_hops} before")

    def _common_preparation(self) -> Preparation:
        """What all layers want of the graph."""
        wanted = {layer.conv: preparation_of(layer.conv) for layer in self._calls}
        kinds = set(wanted.values())
        if len(kinds) > 1:
            raise LayerError(
                "layers of PyTorch Geometric want the graph prepared in different ways",
                value=", ".join(sorted({f"{type(conv).__name__}: {each}" for conv, each in wanted.items()})),
                where=f"model {type(self.model).__name__}",
                fix="Add self-loops to the graph, and build the layers with add_self_loops=False and normalize=False where they have them.",
            )
        found = kinds.pop() if kinds else self.preparation
        read = {name for layer in self._calls for name in layer.edge_data or ()}
        if found.adds_loops and (unknown := read - {WEIGHTS.name, DEGREE_WEIGHTS}):
            raise LayerError(
                "edge data has no value for self-loops",
                value=f"the layers add self-loops, and read {', '.join(sorted(unknown))}",
                where=f"model {type(self.model).__name__}",
                fix="Build the layers with add_self_loops=False, and add loops with their data to the graph if you want them.",
            )
        return found

    def _compare(self, example: Graph, x: Tensor, expected: Tensor) -> None:
        """Refuse a model whose results are not those of PyG."""
        twin = copy.deepcopy(self)
        prepared = twin.prepare(example)
        found = twin._run(twin._walk(prepared.hops(twin.num_hops)), x, example.graph_ptr)
        if found.shape != expected.shape or not (found - expected).abs().max() <= _TOLERANCE * expected.abs().max():
            raise LayerError(
                "a model gives other numbers than with PyTorch Geometric",
                value="its layers are "
                + ", ".join(dict.fromkeys(type(layer.conv).__name__ for layer in self._calls)),
                where=f"model {type(self.model).__name__}",
                fix="One of them changes its edges, or weighs messages otherwise than in proportion. Write it as sagann.SagaLayer.",
            )

    def _find_levels(self, example: Graph, x: Tensor) -> None:
        """Find out which layers walk the same hop of a mini-batch, if the model can walk mini-batches."""
        topology = self.prepare(example).topology
        blocks = [_block(topology, len(x) - level) for level in range(min(len(self.layers), len(x) - 1))]
        walk = SampledWalk(self.model, self._calls, blocks)
        try:
            self._run(walk, x, example.graph_ptr)
        except Exception as error:  # noqa: BLE001  (of any kind: rows do not fit)
            self.not_sampled = in_one_line(error)
        else:
            self.not_sampled, self.levels = "", tuple(walk.levels)


class PygGraphModel(PygModel):
    """A model of PyG that gives each graph a row: ``model(hops, x, graph_ptr)`` -> [num_graphs, F']."""

    def forward(self, hops: Sequence[Topology], x: Tensor, graph_ptr: Tensor) -> Tensor:  # type: ignore[override]
        """Run the model."""
        return self._run(self._walk(hops), x, graph_ptr)


def _convs_of(model: nn.Module) -> Iterator[Any]:
    """The layers of PyG in a model."""
    if "torch_geometric" in sys.modules:
        from torch_geometric.nn import MessagePassing

        yield from (module for module in model.modules() if isinstance(module, MessagePassing))


def _called(model: nn.Module, x: Tensor, edges: Any, stored: Mapping[str, Any], graph_ptr: Tensor | None) -> Tensor:
    """What the model of PyG returns."""
    more = dict(stored)
    if graph_ptr is not None:
        numbers = torch.arange(len(graph_ptr) - 1, device=x.device)
        more["batch"] = torch.repeat_interleave(numbers, graph_ptr.diff(), output_size=len(x))
    if _takes_data(model):
        unknown = dict.fromkeys([*_EDGE_ARGUMENTS, "batch"])
        data = SimpleNamespace(x=x, edge_index=edges, num_nodes=len(x), num_features=x.shape[1], **unknown | more)
        result: Tensor = model(data)
    else:
        result = model(x, edges, **more)
    return result


def _by_pyg(
    model: nn.Module, example: Graph, x: Tensor, offered: tuple[str, ...]
) -> tuple[Tensor, tuple[str, ...]]:
    """What PyG computes, and the arguments that the model got: those offered, or those it needs where it does not run with all."""
    topology, name = example.topology, type(model).__name__
    edges = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    known = _parameters_of(model)
    needed = tuple(each for each in offered if each in known and known[each].default is inspect.Parameter.empty)
    for arguments in dict.fromkeys([offered, needed]):
        given = {each: topology.edge_data[_EDGE_ARGUMENTS[each]] for each in arguments}
        try:
            result = _called(copy.deepcopy(model), x, edges, given, example.graph_ptr)
        except Exception as error:
            if arguments != needed:
                continue
            sizes = [f"x {list(x.shape)}", *(f"{each} {list(rows.shape)}" for each, rows in given.items())]
            raise LayerError(
                "a model of PyTorch Geometric does not run",
                value=f"with {', '.join(sizes)}: {in_one_line(error)}",
                where=f"model {name}",
                fix="Check the widths of its layers against the graph's features and edge data.",
            ) from error
        if not isinstance(result, Tensor):
            raise LayerError(
                "a model must return a tensor",
                value=f"a {type(result).__name__}",
                where=f"model {name}",
                fix="Return one row for each vertex.",
            )
        return result, arguments
    raise AssertionError("the arguments that are needed are tried last")


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
    elif getattr(conv, "cached", False) and hasattr(conv, "_cached_x"):
        found = "cached = True"
    elif conv.explain or any(
        hooks
        for name, hooks in vars(conv).items()
        if name.endswith("_hooks") and name.startswith(("_propagate", "_message", "_aggregate", "_edge_update"))
    ):
        found = "hooks of PyG, or an explanation"
    if found:
        raise LayerError(
            "a layer of PyTorch Geometric does what a SAGA layer cannot",
            value=found,
            where=f"layer {type(conv).__name__}",
            fix="Build it without, or write it as sagann.SagaLayer: 'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
        )


def _arguments_for(model: nn.Module, graph: Graph) -> tuple[str, ...]:
    """The arguments of a model that get edge data: those that the graph has, and those that the model needs."""
    known = _parameters_of(model)
    takes_all = _takes_data(model)
    found = []
    for name, stored in _EDGE_ARGUMENTS.items():
        is_there = stored in graph.topology.edge_data
        is_needed = name in known and known[name].default is inspect.Parameter.empty
        if is_needed or (is_there and (name in known or takes_all)):
            found.append(name)
    return tuple(found)


def _parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def _takes_data(model: nn.Module) -> bool:
    """Whether a model takes a graph, of which it reads rows and edges."""
    needed = [each for each in _parameters_of(model).values() if each.default is each.empty]
    return len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD and not takes_edge_index(model)


def _example_of(graph: Graph, arguments: Sequence[str], model: nn.Module) -> tuple[Graph, Tensor]:
    """A graph of made-up vertices and edges with edge data like those of a graph, and its features."""
    generator = torch.Generator().manual_seed(0)
    like = next((each for each in model.parameters() if each.is_floating_point()), torch.empty(0))
    # Every vertex but the last one has in-edges, some of them twice, and some a self-loop.
    src = torch.randint(_NUM_ROWS, (_NUM_EDGES,), generator=generator)
    dst = torch.randint(_NUM_ROWS - 1, (_NUM_EDGES,), generator=generator)
    loops = torch.arange(0, _NUM_ROWS, 3)
    src, dst = torch.cat([src[src != dst], loops]), torch.cat([dst[src != dst], loops])
    data = {}
    for name in arguments:
        stored = _EDGE_ARGUMENTS[name]
        known = graph.topology.edge_data.get(stored)
        shape = (len(src), *(() if known is None else known.shape[1:]))
        if stored == "type":
            data[stored] = torch.randint(max(graph.num_edge_types, 1), shape, generator=generator)
        else:
            dtype = like.dtype if known is None else known.dtype
            data[stored] = (torch.rand(shape, generator=generator) + 0.1).to(dtype)
    topology = Topology.from_coo(src=src, dst=dst, num_src=_NUM_ROWS, edge_data=data)
    x = torch.randn(_NUM_ROWS, graph.num_features, generator=generator).to(like.dtype)
    types = graph.num_edge_types if "type" in data else 0
    graph_ptr = torch.tensor([0, _NUM_ROWS // 2, _NUM_ROWS]) if is_of_graphs(graph) else None
    found = Graph(topology=topology, features=x, num_edge_types=types, graph_ptr=graph_ptr)
    return found.to(like.device), x.to(like.device)


def _with_some_weights(topology: Topology, *, like: Tensor) -> Topology:
    """With weights by degree that no edges have, but different ones."""
    weights = torch.linspace(0.5, 1.0, topology.num_edges, dtype=like.dtype, device=like.device)
    return topology.with_edge_data(**{DEGREE_WEIGHTS: weights})


def _block(topology: Topology, num_src: int) -> Topology:
    """The edges among the first vertices that reach all of these but the last one."""
    src, dst = topology.indices.long(), topology.edge_dst().long()
    inside = (src < num_src) & (dst < num_src - 1)
    data = {name: rows[inside] for name, rows in topology.edge_data.items()}
    return Topology.from_coo(src=src[inside], dst=dst[inside], num_src=num_src, num_dst=num_src - 1, edge_data=data)


def _without(graph: Graph, name: str) -> Graph:
    """The graph without one of its edge data."""
    known = graph.topology
    if name not in known.edge_data:
        return graph
    left = {other: rows for other, rows in known.edge_data.items() if other != name}
    return graph.with_topology(
        Topology(indptr=known.indptr, indices=known.indices, num_src=known.num_src, edge_data=left, validate=False)
    )


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block the model is in evaluation mode; no gradient is recorded, and no random number is drawn for others."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
