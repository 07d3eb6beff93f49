"""How a model is called: with the topologies to walk and the rows of the vertices, and where it gives graphs a row, with their offsets.

A model that scores links has a function ``score`` besides, which is called with the rows of their ends, and their types.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from sagann.errors import InputError
from sagann.interop.pyg_call import EDGES, is_written_for_pyg

VERTICES = ("hops", "x")
"What a model that gives each vertex a row is called with."
GRAPHS = (*VERTICES, "graph_ptr")
"What a model that gives each graph a row is called with."
LINKS = ("src", "dst", "types")
"What the function ``score`` of a model that scores links is called with."


def class_of(model: nn.Module) -> type[nn.Module]:
    """The class that the user wrote: of a model of PyG, that of PyG's."""
    found: type[nn.Module] = getattr(model, "user_class", type(model))
    return found


def check_call(model: nn.Module, arguments: tuple[str, ...], *, where: str) -> None:
    """Refuse a model whose ``forward`` does not take these arguments in this order; ``where`` names the model.

    A ``forward`` whose parameters are not known, such as one of TorchScript, passes.

    Raises:
        InputError: there is no function ``forward``, it takes other numbers of arguments, some by name alone, or PyG's ``edge_index``;
            or it is a model of PyG.
    """
    forward = model.forward
    if getattr(forward, "__func__", None) is nn.Module.forward or not callable(forward):
        found = (
            f"{type(model).__name__} defines none"
            if callable(forward)
            else f"it is of type {type(forward).__name__}"
        )
        raise InputError(
            f"the model has no function forward: {found} (in {where})",
            hint=f"Define forward(self, {', '.join(arguments)}), which returns the outputs.",
        )
    if is_written_for_pyg(model):
        raise InputError(
            f"a model of PyTorch Geometric is part of another one: {type(model).__name__} is called as "
            f"model({', '.join(arguments)}) (in {where})",
            hint="Pass sagann.interop.from_pyg_model(model, graph) instead of the model.",
        )
    _check_arguments(forward, "forward", arguments, called="model", where=where)


def own_score(model: nn.Module) -> Callable[..., Any] | None:
    """The function by which a model scores links itself; None for a model without one."""
    score = getattr(model, "score", None)
    return score if callable(score) else None


def check_score(model: nn.Module, *, where: str) -> None:
    """Refuse a model whose own ``score`` does not take what links are scored by; ``where`` names the model.

    A ``score`` whose parameters are not known passes, and so does a model without one.

    Raises:
        InputError: ``score`` takes other numbers of arguments, or some by name alone.
    """
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
