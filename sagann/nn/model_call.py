"""How a model is called: with the topologies to walk and the rows of the vertices, and where it gives graphs a row, with their offsets.

A model that scores links has a function ``score`` besides, which is called with the rows of their ends, and their types.
Models of PyTorch Geometric are called with rows, edges and edge data, or with a graph of these.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sagann.errors import InputError

VERTICES = ("hops", "x")
"What a model that gives each vertex a row is called with."
GRAPHS = (*VERTICES, "graph_ptr")
"What a model that gives each graph a row is called with."
EDGES = ("edge_index", "adj_t", "adj", "edges")
"Names of the argument after the rows."
EDGE_ARGUMENTS = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "type"}
"Arguments of a model's forward, and the edge data that they are."
LINKS = ("src", "dst", "types")
"What the function ``score`` of a model that scores links is called with."


def class_of(model: nn.Module) -> type[nn.Module]:
    """The class that the user wrote: of a model of PyG, that of PyG's."""
    found: type[nn.Module] = getattr(model, "user_class", type(model))
    return found


def check_call(model: nn.Module, arguments: tuple[str, ...], *, where: str) -> None:
    """Refuse a model whose ``forward`` does not take these arguments in this order; ``where`` names the model.

    A ``forward`` whose parameters are not known, such as one of TorchScript, passes.
    """
    name = type(model).__name__
    if getattr(model.forward, "__func__", None) is nn.Module.forward:
        raise InputError(
            f"the model has no function forward: {name} defines none (in {where})",
            hint=f"Define forward(self, {', '.join(arguments)}), which returns the outputs.",
        )
    if is_written_for_pyg(model):
        raise InputError(
            f"a model of PyTorch Geometric is part of another one: {name} is called as model({', '.join(arguments)}) (in {where})",
            hint="Pass sagann.interop.from_pyg_model(model, graph) instead of the model.",
        )
    _check_arguments(model.forward, "forward", arguments, called="model", where=where)


def own_score(model: nn.Module) -> Callable[..., Any] | None:
    """The function by which a model scores links itself; None for a model without one."""
    score = getattr(model, "score", None)
    return score if callable(score) else None


def check_score(model: nn.Module, *, where: str) -> None:
    """Refuse a model whose own ``score``, if it has one, does not take what links are scored by; ``where`` names the model."""
    score = own_score(model)
    if score is not None:
        function = score.forward if isinstance(score, nn.Module) else score
        _check_arguments(function, "score", LINKS, called="model.score", where=where)


def _check_arguments(
    function: Callable[..., Any], name: str, arguments: tuple[str, ...], *, called: str, where: str
) -> None:
    call = f"({', '.join(arguments)})"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    names = list(signature.parameters)
    if len(names) > 1 and names[1] in EDGES:
        raise InputError(
            "the model takes edges, and has no layer of PyTorch Geometric that they could be passed to: "
            f"{name}({', '.join(names)}) takes {names[1]}, and is called as {called}{call} (in {where})",
            hint=f"Write its layers as sagann.SagaLayer, or use those of sagann.nn, and define forward(self, {', '.join(arguments)}): "
            "'Coming from PyG or DGL' in docs/quickstart.md says what is what.",
        )
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InputError(
            f"the model cannot be called as {called}{call}: {name}{signature}: {error} (in {where})",
            hint=f"Let {name} take {call}, in this order, and nothing else without a default.",
        ) from error


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
