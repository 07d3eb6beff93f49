"""How a model is called: with the topologies to walk and the rows of the vertices, and where it gives graphs a row, with their offsets."""

from __future__ import annotations

import inspect

from torch import nn

from sagann.errors import InputError

VERTICES = ("hops", "x")
"What a model that gives each vertex a row is called with."
GRAPHS = (*VERTICES, "graph_ptr")
"What a model that gives each graph a row is called with."


def check_call(model: nn.Module, arguments: tuple[str, ...], *, where: str) -> None:
    """Refuse a model whose ``forward`` does not take these arguments in this order; ``where`` names the model.

    A ``forward`` whose parameters are not known, such as one of TorchScript, passes.

    Raises:
        InputError: there is no function ``forward``, it takes other numbers of arguments, or some by name alone.
    """
    call = f"({', '.join(arguments)})"
    forward = model.forward
    if getattr(forward, "__func__", None) is nn.Module.forward or not callable(forward):
        raise InputError(
            "the model has no function forward",
            value=f"{type(model).__name__} defines none"
            if callable(forward)
            else f"it is of type {type(forward).__name__}",
            where=where,
            fix=f"Define forward(self, {', '.join(arguments)}), which returns the outputs.",
        )
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InputError(
            f"the model cannot be called as model{call}",
            value=f"forward{signature}: {error}",
            where=where,
            fix=f"Let forward take {call}, in this order, and nothing else without a default.",
        ) from error
