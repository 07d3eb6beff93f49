"""How PyTorch Geometric calls a model: with rows, edges and edge data, or with a graph of these; and what it computes of made-up vertices."""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sagann.graph import Graph
from sagann.interop.pyg_example import EDGE_ARGUMENTS, example_of

EDGES = ("edge_index", "adj_t", "adj", "edges")
"Names of the argument after the rows."
CACHES_OF_ROWS = ("_cached_x", "_cached_h")
"Attributes in which layers of PyG keep rows that they have propagated."
_CACHES = ("_cached_edge_index", "_cached_adj_t", *CACHES_OF_ROWS)
"Attributes in which they keep what they have prepared, edges or rows."


def convs_of(model: nn.Module) -> Iterator[Any]:
    """The layers of PyG in a model."""
    if "torch_geometric" in sys.modules:
        from torch_geometric.nn import MessagePassing

        yield from (module for module in model.modules() if isinstance(module, MessagePassing))


def takes_edge_index(model: nn.Module) -> bool:
    """Whether a model's ``forward`` takes edges after its rows, as those of PyG do."""
    names = list(parameters_of(model))
    return len(names) > 1 and names[1] in EDGES


def takes_data(model: nn.Module) -> bool:
    """Whether a model takes a graph, of which it reads rows and edges."""
    needed = [each for each in parameters_of(model).values() if each.default is each.empty]
    return len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD and not takes_edge_index(model)


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The parameters of a model's ``forward``; none where they are not known."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def arguments_for(model: nn.Module, graph: Graph) -> tuple[str, ...]:
    """The arguments of a model that get edge data: those that the graph has, and those that the model needs."""
    known = parameters_of(model)
    takes_all = takes_data(model)
    found = []
    for name, stored in EDGE_ARGUMENTS.items():
        is_there = stored in graph.topology.edge_data
        is_needed = name in known and known[name].default is inspect.Parameter.empty
        if is_needed or (is_there and (name in known or takes_all)):
            found.append(name)
    return tuple(found)


def first_run(model: nn.Module, graph: Graph, *, of_graphs: bool) -> tuple[tuple[str, ...], bool, Any]:
    """The arguments with which a model runs in PyG on made-up vertices, whether these have whole numbers as features, and what it returns.

    It gets all that the graph has edge data for; where it does not run with them, those that it needs. A model that looks features up runs with
    whole numbers alone. A model that runs with none of these gives the first ones, and None.
    """
    offered, known = arguments_for(model, graph), parameters_of(model)
    needed = tuple(each for each in offered if each in known and known[each].default is inspect.Parameter.empty)
    for whole, arguments in itertools.product((False, True), dict.fromkeys([offered, needed])):
        example, x = example_of(graph, arguments, model, of_graphs=of_graphs, whole=whole)
        try:
            return arguments, whole, run_twin(model, arguments, example, x)[0]
        except Exception:  # noqa: BLE001  (of any kind: the error comes again when the model is read)
            continue
    return offered, False, None


def run_twin(model: nn.Module, arguments: Sequence[str], example: Graph, x: Tensor) -> tuple[Any, nn.Module]:
    """What a copy of the model returns in PyG, in evaluation mode, and the copy. No gradient is recorded, and no random number drawn for others."""
    twin = copy.deepcopy(model).eval()
    forget_edges(twin)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return run_in_pyg(twin, arguments, example, x), twin


def forget_edges(model: nn.Module) -> None:
    """Have the layers of PyG prepare their edges anew."""
    for conv in convs_of(model):
        conv.__dict__.update((name, None) for name in _CACHES if name in conv.__dict__)


def run_in_pyg(model: nn.Module, arguments: Sequence[str], example: Graph, x: Tensor) -> Any:
    """What a model returns in PyG for the vertices and edges of a graph."""
    topology = example.topology
    edges = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    given = {name: topology.edge_data[EDGE_ARGUMENTS[name]] for name in arguments}
    return called(model, x, edges, given, example.graph_ptr)


def called(model: nn.Module, x: Tensor, edges: Any, stored: Mapping[str, Any], graph_ptr: Tensor | None) -> Any:
    """What a model of PyG returns."""
    more = dict(stored)
    if graph_ptr is not None:
        numbers = torch.arange(len(graph_ptr) - 1, device=x.device)
        more["batch"] = torch.repeat_interleave(numbers, graph_ptr.diff(), output_size=len(x))
    if not takes_data(model):
        return model(x, edges, **more)
    unknown = dict.fromkeys([*EDGE_ARGUMENTS, "batch"])
    return model(
        SimpleNamespace(x=x, edge_index=edges, num_nodes=len(x), num_features=x.shape[1], **unknown | more)
    )
