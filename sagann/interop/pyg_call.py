"""How PyTorch Geometric calls a model: with rows, edges and edge data, or with a graph of these."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

EDGES = ("edge_index", "adj_t", "adj", "edges")
"Names of the argument after the rows."
EDGE_ARGUMENTS = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "type"}
"Arguments of a model's forward, and the edge data that they are."


def convs_of(model: nn.Module) -> Iterator[Any]:
    """The layers of PyG in a model."""
    if "torch_geometric" in sys.modules:
        from torch_geometric.nn import MessagePassing

        yield from (module for module in model.modules() if isinstance(module, MessagePassing))


def is_written_for_pyg(model: nn.Module) -> bool:
    """Whether a model has layers of PyG, and is called as models of PyG are: with rows and edges, or with a graph alone. PyG is not loaded."""
    return any(True for _ in convs_of(model)) and (takes_edge_index(model) or takes_data(model))


def takes_edge_index(model: nn.Module) -> bool:
    """Whether a model's ``forward`` takes edges after its rows, as those of PyG do."""
    names = list(parameters_of(model))
    return len(names) > 1 and names[1] in EDGES


def takes_data(model: nn.Module) -> bool:
    """Whether a model takes a graph, of which it reads rows and edges."""
    needed = [each for each in parameters_of(model).values() if each.default is each.empty]
    return len(needed) == 1 and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD and not takes_edge_index(model)


def may_take_batch(model: nn.Module) -> bool:
    """Whether a model may be told which vertices make up a graph."""
    return "batch" in parameters_of(model) or takes_data(model)


def parameters_of(model: nn.Module | type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a model's ``forward``; none where they are not known."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


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
