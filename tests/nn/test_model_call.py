"""Which models, options and widths are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn import Linear, Module

from sagann import nn
from sagann.errors import InputError
from sagann.graph import random_split, sbm_graph
from sagann.nn.model_call import GRAPHS, VERTICES, check_call
from sagann.train import TrainConfig, Trainer


def model_with(parameters: str) -> Module:
    """A model whose ``forward`` has these parameters."""
    scope: dict[str, Any] = {"Module": Module}
    exec(f"class Mine(Module):\n    def forward(self{parameters}):\n        return x", scope)
    mine: Module = scope["Mine"]()
    return mine


class WithoutForward(Module):
    pass


@pytest.mark.parametrize(
    "parameters", [", hops, x", ", topologies, rows, /, scale=1.0", ", *hops_and_x", ", hops, x=None, **more"]
)
def test_a_forward_that_takes_hops_and_rows_passes(parameters: str) -> None:
    check_call(model_with(parameters), VERTICES, where="model")


def test_a_forward_whose_parameters_are_not_known_passes() -> None:
    model = Linear(2, 2)
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
    model = Linear(2, 2)
    model.forward = 3  # type: ignore[assignment]
    with pytest.raises(InputError, match="no function forward: it is of type int"):
        check_call(model, VERTICES, where="model")


def test_the_model_of_the_vertices_in_a_graph_model_is_checked() -> None:
    with pytest.raises(InputError, match=r"GraphModel.gnn, a Mine(.|\n)*Let forward take \(hops, x\)"):
        nn.GraphModel(model_with(", x"), 4, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "sage"}, ""),
        ({"model": "transformer", "heads": 4, "hidden": 64}, ""),
        ({"model": "gcn", "heads": 4}, "heads = 4 has no effect on gcn: gat, gatv2, transformer read it."),
    ],
)
def test_options_that_the_model_does_not_read_are_named(settings: dict[str, Any], said: str) -> None:
    assert nn.ModelConfig(**settings).without_effect() == said


def test_a_trainer_says_so(caplog: pytest.LogCaptureFixture) -> None:
    graph = sbm_graph(60, num_classes=2, average_degree=4, homophily=0.8, num_features=4, feature_noise=0.1, seed=0)
    Trainer(
        nn.ModelConfig(model="gcn", hidden=8, heads=4, pool="max"),
        random_split(graph, train=0.5, val=0.2, seed=0),
        TrainConfig(epochs=1),
        progress=False,
    )
    assert "heads = 4 has no effect on gcn" in caplog.text
    assert "pool = max has no effect here" in caplog.text


@pytest.mark.parametrize("widths", [(-1, 64), ((8, 8), 64), (8, None), (8.0, 64)])
@pytest.mark.parametrize(
    "kind", [nn.CommNet, nn.EdgeConv, nn.GAT, nn.GATv2, nn.GatedGCN, nn.GCN, nn.GIN, nn.SAGE, nn.TransformerConv]
)
def test_widths_that_pyg_would_find_out_are_refused(kind: Any, widths: tuple[Any, Any]) -> None:
    message = rf"out of range: .*, expected an integer of at least 0 \(in {kind.__name__}\).*PyG's -1"
    with pytest.raises(InputError, match=message):
        kind(*widths)


@pytest.mark.parametrize("count", [-1, 0, None, 2.0])
def test_counts_that_are_no_counts_are_refused(count: Any) -> None:
    made = [(kind, (8, 4), "num_heads") for kind in (nn.GAT, nn.GATv2, nn.TransformerConv)]
    for kind, widths, name in [*made, (nn.GGNN, (8,), "num_edge_types"), (nn.RGCN, (8, 4), "num_relations")]:
        with pytest.raises(InputError, match=rf"{name} = {count}, expected .* at least 1 \(in {kind.__name__}\)"):
            kind(*widths, **{name: count})
