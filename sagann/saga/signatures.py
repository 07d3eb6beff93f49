"""Signatures: the functions of a SAGA layer take what the system passes them, or the error shows the right ``def`` line."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from sagann.errors import LayerError

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

_EXPECTED = {
    "apply_edge": (
        "def apply_edge(self, edge)",
        1,
        "edge.src has the rows of the sources (x_j of PyG), edge.dst those of the destinations (x_i), and edge.data the edge data "
        "that the class attribute edge_data names",
    ),
    "apply_vertex": (
        "def apply_vertex(self, vertex, accum)",
        2,
        "vertex has the rows before the layer, and accum what was gathered",
    ),
    "prepare": ("@staticmethod def prepare(graph)", 1, "it is called on the class, and returns the prepared graph"),
}
"""Of each function: its definition, how many arguments the system passes, and what they are."""


def check_signatures(layer: SagaLayer, *names: str) -> None:
    """Refuse a layer of which one of these functions cannot be called with the arguments that the system passes."""
    for name in names:
        definition, num_arguments, meaning = _EXPECTED[name]
        function = getattr(type(layer) if name == "prepare" else layer, name)
        try:
            signature = inspect.signature(function)
            signature.bind(*[None] * num_arguments)
        except ValueError:
            # A built-in function does not say what it takes.
            continue
        except TypeError as error:
            raise LayerError(
                f"{name} takes other arguments than it is given: {_definition(function)}, expected "
                f"{definition}: {error} (in layer {type(layer).__name__})",
                hint=f"Write it as {definition}: {meaning}.",
            ) from None


def _definition(function: object) -> str:
    """How the function is defined, with its ``self``; as Python shows the value where it is no function."""
    plain = getattr(function, "__func__", function)
    if not callable(plain):
        return repr(plain)
    return f"def {getattr(plain, '__name__', 'it')}{inspect.signature(plain)}"
