"""Models of the zoo: shapes, settings, bits by any number of threads; and what is refused of a model before it runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import Linear, Module, functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sagann import nn
from sagann.errors import InputError
from sagann.graph import Graph, Topology, demo_graph, random_split, sbm_graph
from sagann.nn import GNN, MODELS, ModelConfig, build_model
from sagann.nn.model_call import GRAPHS, VERTICES, check_call
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import using_engine
from sagann.train import TrainConfig, Trainer
from tests.graphs import labelled_graph


def run(config: ModelConfig, graph: Graph) -> torch.Tensor:
    model = build_model(config, graph)
    prepared = model.prepare(graph) if hasattr(model, "prepare") else graph
    return model(prepared.hops(getattr(model, "num_hops", 2)), prepared.features)


@pytest.mark.parametrize(("layers", "norm"), [(1, "layer"), (3, "batch")])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs_at_every_depth(model: str, layers: int, norm: str | None) -> None:
    graph = labelled_graph(types=2 if model == "ggnn" else 0)
    out = run(ModelConfig(model=model, layers=layers, hidden=16, norm=norm), graph)
    assert out.shape == (graph.num_vertices, graph.num_classes)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("features", [None, torch.empty(53, 0)], ids=["none", "no column"])
@pytest.mark.parametrize("model", MODELS)
def test_a_graph_without_features_gets_an_embedding(model: str, features: torch.Tensor | None) -> None:
    graph = replace(labelled_graph(), features=features)
    assert run(ModelConfig(model=model, hidden=16), graph).shape == (graph.num_vertices, 3)


@pytest.mark.parametrize("model", MODELS)
def test_edge_data_that_no_layer_reads_does_no_harm(model: str) -> None:
    graph = labelled_graph(types=2 if model == "ggnn" else 0)
    vectors = torch.rand(graph.num_edges, 3)
    graph = replace(graph, topology=graph.topology.with_edge_data(vector=vectors))
    assert run(ModelConfig(model=model, hidden=16), graph).shape == (graph.num_vertices, 3)


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("encoder", ["auto", "linear"])
@pytest.mark.parametrize("model", MODELS)
def test_sparse_features_give_what_dense_ones_give(model: str, encoder: str) -> None:
    graph = labelled_graph()
    config = ModelConfig(model=model, hidden=16, dropout=0.0, encoder=encoder)
    torch.manual_seed(0)
    dense = run(config, graph)
    torch.manual_seed(0)
    sparse = run(config, replace(graph, features=graph.features.to_sparse_csr()))
    torch.testing.assert_close(sparse, dense)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_preparing_a_graph_twice_changes_nothing(model: str, weighted: bool) -> None:
    graph = labelled_graph()
    if not weighted:
        plain = Topology(indptr=graph.topology.indptr, indices=graph.topology.indices, num_src=graph.num_vertices)
        graph = graph.with_topology(plain)
    module = build_model(ModelConfig(model=model, hidden=16), graph)
    once = module.prepare(graph)
    twice = module.prepare(once)
    assert torch.equal(once.topology.indices, twice.topology.indices)
    assert once.topology.edge_data.keys() == twice.topology.edge_data.keys()
    for name, rows in once.topology.edge_data.items():
        assert torch.equal(rows, twice.topology.edge_data[name])


def test_gat_heads_are_concatenated_then_averaged() -> None:
    config = ModelConfig(model="gat", hidden=64, heads=8, model_options={"out_heads": 4})
    model = build_model(config, labelled_graph())
    assert isinstance(model, GNN)
    first, last = model.layers
    assert (first.num_heads, first.head_dim, first.concat) == (8, 8, True)
    assert (last.num_heads, last.head_dim, last.concat) == (4, 3, False)


def test_residual_gcn_learns_a_shortcut_where_widths_differ_or_when_asked() -> None:
    def shortcuts(**options: bool) -> list[str]:
        config = ModelConfig(model="residual-gcn", layers=3, hidden=16, model_options=options)
        return [type(layer.shortcut).__name__ for layer in build_model(config, labelled_graph()).layers]

    assert shortcuts() == ["Linear", "Identity", "Linear"]
    assert shortcuts(linear_shortcut=True) == ["Linear", "Linear", "Linear"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gnc"}, "unknown model: 'gnc', expected one of commnet, gcn,"),
        ({"layers": 0}, "layers is 0, expected an integer from 1 to 1000"),
        ({"dropout": 1.0}, "dropout is 1.0, expected a number from 0 to less than 1"),
        ({"encoder": "magic"}, "encoder is 'magic', expected one of auto"),
        ({"model": "gat", "hidden": 30}, "heads do not divide the width: hidden 30, heads 8"),
        ({"model": "gat", "model_options": {"heads": 2}}, "has an option of its own: 'heads'"),
        ({"model": "gat", "model_options": {"out_heads": "4"}}, "option out_heads of gat is not an integer: '4'"),
        ({"model": "gat", "model_options": {"out_hedas": 4}}, "gat has no such option: 'out_hedas' .* Did you mean 'out_heads'"),
        ({"model": "transformer", "model_options": {"negative_slope": 0.1}}, "transformer has no such option"),
        ({"model": "sgc", "model_options": {"teleport": 0.1}}, "sgc has no such option: .* it takes none"),
        ({"hidden": "wide"}, "hidden is 'wide', expected"),
        ({"model": "SAGEConv"}, "Did you mean 'sage'"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig(**settings)


def test_features_and_encoder_must_fit() -> None:
    graph = labelled_graph()
    with pytest.raises(InputError, match="embedding per vertex leaves the features unused: 8 features"):
        build_model(ModelConfig(encoder="embedding"), graph)
    with pytest.raises(InputError, match="vertices have no features: encoder = 'linear'"):
        build_model(ModelConfig(encoder="linear"), replace(graph, features=None))
    with pytest.raises(InputError, match="no classes to learn"):
        build_model(ModelConfig(), replace(graph, labels=None, num_classes=0))


aten = torch.ops.aten

# The activation of gat and the gradient of gin's eps are PyTorch's, which cuts them by the number of threads.
BY_OUR_KERNELS = ("gcn", "maxpool-gcn", "gated-gcn", "ggnn", "sage")


class _ProductsByOneThread(TorchDispatchMode):
    """Has one thread compute products of matrices: a BLAS library may add in an order that depends on the number of threads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        num_threads = torch.get_num_threads()
        if func.overloadpacket in (aten.mm, aten.addmm, aten.addmm_, aten.bmm):
            torch.set_num_threads(1)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_num_threads(num_threads)


def trained(name: str, graph: Graph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=16), graph)
    graph = model.prepare(graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        with _ProductsByOneThread():
            out = model(graph.hops(model.num_hops), graph.features)
            F.cross_entropy(out, graph.labels).backward()
        optimizer.step()
        found += [out.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
    return found


@pytest.mark.parametrize("name", BY_OUR_KERNELS)
def test_a_model_of_the_zoo_trains_to_the_same_bits_by_any_number_of_threads(name: str, threads: Any) -> None:
    graph, found = demo_graph(), []
    with using_engine(CompiledEngine(dialect="cpu")):
        for count in (1, 2, 3):
            threads(count)
            found.append(trained(name, graph))
    assert all(torch.equal(first, each) for first, *others in zip(*found, strict=True) for each in others)


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
        (", x, edge_index", VERTICES, r"could be passed to: forward\(x, edge_index\) takes edge_index, .* as model\(hops, x\)"),
        (", x, adj_t, edge_weight, batch", GRAPHS, r"takes adj_t(.|\n)*define forward\(self, hops, x, graph_ptr\)"),
        (", hops, x", GRAPHS, r"model\(hops, x, graph_ptr\): .*too many positional arguments"),
    ],
)  # fmt: skip
def test_a_forward_that_takes_other_arguments_is_refused(
    parameters: str, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_call(model_with(parameters), arguments, where="model")


def test_a_model_without_forward_is_refused() -> None:
    with pytest.raises(InputError, match="no function forward: WithoutForward defines none"):
        check_call(WithoutForward(), VERTICES, where="model")


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
