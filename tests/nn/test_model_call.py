"""Models that cannot be called are refused before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from sagann.errors import InputError
from sagann.nn import GraphModel
from sagann.nn.model_call import GRAPHS, VERTICES, check_call


def model_with(parameters: str) -> nn.Module:
    """A model whose ``forward`` has these parameters."""
    scope: dict[str, Any] = {"Module": nn.Module}
    exec(f"class Mine(Module):\n    def forward(self{parameters}):\n        return x", scope)
    mine: nn.Module = scope["Mine"]()
    return mine


class WithoutForward(nn.Module):
    pass


@pytest.mark.parametrize(
    "parameters", [", hops, x", ", topologies, rows, /, scale=1.0", ", *hops_and_x", ", hops, x=None, **more"]
)
def test_a_forward_that_takes_hops_and_rows_passes(parameters: str) -> None:
    check_call(model_with(parameters), VERTICES, where="model")


def test_a_forward_whose_parameters_are_not_known_passes() -> None:
    model = nn.Linear(2, 2)
    # Python cannot say what this function of C takes.
    model.forward = max  # type: ignore[method-assign,assignment]
    check_call(model, VERTICES, where="model")


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        (", x", VERTICES, r"model\(hops, x\): forward\(x\): too many positional arguments"),
        (", hops, x, edge_weight", VERTICES, "missing a required argument: 'edge_weight'"),
        (", hops, x, *, scale", VERTICES, "missing a required .*argument: 'scale'"),
        ("", VERTICES, "too many positional arguments"),
        (
            ", x, edge_index",
            VERTICES,
            r"could be passed to: forward\(x, edge_index\) takes edge_index, .* as model\(hops, x\)",
        ),
        (", x, adj_t, edge_weight, batch", GRAPHS, r"takes adj_t(.|\n)*define forward\(self, hops, x, graph_ptr\)"),
        (", hops, x", GRAPHS, r"model\(hops, x, graph_ptr\): .*too many positional arguments"),
    ],
)
def test_a_forward_that_takes_other_arguments_is_refused(
    parameters: str, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_call(model_with(parameters), arguments, where="model")


def test_a_model_without_forward_is_refused() -> None:
    with pytest.raises(InputError, match="no function forward: WithoutForward defines none"):
        check_call(WithoutForward(), VERTICES, where="model")


def test_a_forward_that_is_no_function_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.forward = 3  # type: ignore[assignment]
    with pytest.raises(InputError, match="no function forward: it is of type int"):
        check_call(model, VERTICES, where="model")


def test_the_model_of_the_vertices_in_a_graph_model_is_checked() -> None:
    with pytest.raises(InputError, match=r"GraphModel.gnn, a Mine(.|\n)*Let forward take \(hops, x\)"):
        GraphModel(model_with(", x"), 4, 2)
