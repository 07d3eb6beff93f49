"""What callers do with what they give to a streamed model and get from it; a model is traced anew when it, or its hops, have changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Topology
from sagann.nn import GCN, GNN, SAGE, ModelConfig, build_model
from sagann.plan import equal_vertices
from sagann.plan.hops import hop_size
from sagann.plan.residency import BudgetError
from sagann.runtime.loading import MiniBatches
from sagann.runtime.places import device_named, require_on_host
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.runtime.streaming.tape import Tape
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph, random_topology
from tests.tolerances import assert_close

ROWS = 60


class Squashed(nn.Module):
    """A layer, and a function whose gradient reads its own result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = SAGE(6, 4)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(hops[0], x))


def weighted_topology() -> Topology:
    topology = random_topology(ROWS, 400)
    return topology.with_edge_data(gcn_weight=topology.edge_data["weight"].clone())


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("count", [1, 3])
def test_a_result_may_be_changed_before_the_backward(count: int) -> None:
    model, x, topology = Squashed(), torch.randn(ROWS, 6), random_topology(ROWS, 400)
    expected = gradients(model, (2 * model([topology], x)).sum())
    result = StreamedModel(model, [topology], equal_vertices(ROWS, count))(x)
    result.mul_(2)
    for ours, theirs in zip(gradients(model, result.sum()), expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize(("count", "budget_bytes"), [(1, 1 << 62), (3, 1 << 20)])
def test_edge_data_that_is_changed_in_place_is_seen(count: int, budget_bytes: int) -> None:
    model, x, topology = GNN([GCN(6, 4)]), torch.randn(ROWS, 6), weighted_topology()
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, count), budget_bytes=budget_bytes)
    assert_close(streamed(x), model([topology], x))
    topology.edge_data["gcn_weight"].mul_(3)
    assert_close(streamed(x), model([topology], x))


@pytest.mark.parametrize("count", [1, 3])
def test_edge_data_that_is_changed_before_the_backward_is_refused(count: int) -> None:
    model, x, topology = GNN([GCN(6, 4)]), torch.randn(ROWS, 6), weighted_topology()
    result = StreamedModel(model, [topology], equal_vertices(ROWS, count))(x)
    topology.edge_data["gcn_weight"].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize(
    ("when", "array"),
    [("before planning", "indptr"), ("between calls", "indices"), ("before the backward", "indptr")],
)
def test_edges_that_are_overwritten_are_refused(when: str, array: str) -> None:
    model, x, topology = Squashed(), torch.randn(ROWS, 6), random_topology(ROWS, 400)
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, 3))
    result = streamed(x)

    def go_on() -> None:
        if when == "before planning":
            hop_size(topology, equal_vertices(ROWS, 2))
        elif when == "between calls":
            streamed(x)
        else:
            result.sum().backward()

    getattr(topology, array).mul_(1 << 20)
    message = rf"edges of a topology were overwritten.*\(in Topology.{array}\)"
    with pytest.raises(LayerError, match=message):
        go_on()


def test_features_that_were_made_in_inference_mode() -> None:
    model, topology = Squashed(), random_topology(ROWS, 400)
    with torch.inference_mode():
        x = torch.randn(ROWS, 6)
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, 3), budget_bytes=1 << 20)
    with torch.no_grad():
        assert_close(streamed(x), model([topology], x))


def test_autocast_is_refused() -> None:
    topology = random_topology(ROWS, 400)
    streamed = StreamedModel(Squashed(), [topology], equal_vertices(ROWS, 3))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="autocast"):
        streamed(torch.randn(ROWS, 6))


def test_a_backward_within_autocast_is_that_of_the_forward() -> None:
    model, x, topology = Squashed(), torch.randn(ROWS, 6), random_topology(ROWS, 400)
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, 3))
    expected = gradients(model, streamed(x).sum())
    loss = streamed(x).sum()
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(model, loss)
    assert all(map(torch.equal, found, expected))


def test_what_is_trained_must_lead_to_the_result() -> None:
    model, x, topology = Squashed(), torch.randn(ROWS, 6), random_topology(ROWS, 400)
    model.layer.requires_grad_(False)
    model.unused = nn.Linear(3, 3)
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, 3))
    with torch.no_grad():
        assert_close(streamed(x), model([topology], x))
    with pytest.raises(LayerError, match="no gradient leads from it to what is trained"):
        streamed(x).sum().backward()


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_left_of_epochs_that_came_to_no_backward(count: int) -> None:
    model, x, topology = Squashed(), torch.randn(ROWS, 6), random_topology(ROWS, 400)
    streamed = StreamedModel(model, [topology], equal_vertices(ROWS, count))

    def some(z: Tensor, vertices: slice) -> Tensor:
        # Of most intervals nothing is trained.
        return z.sum() if vertices.start == 0 else z.new_zeros(())

    for _ in range(2):
        streamed(x)
        streamed.loss(x, some).backward()
    gc.collect()
    assert [each for each in gc.get_objects() if type(each) is Tape] == []


def test_the_collector_of_garbage_runs_again_after_a_plan_and_after_an_error() -> None:
    x, hops, bounds = torch.randn(ROWS, 6), [random_topology(ROWS, 400)], equal_vertices(ROWS, 3)
    assert gc.isenabled()
    StreamedModel(Squashed(), hops, bounds).plan(x)
    assert gc.isenabled()
    with pytest.raises(BudgetError):
        StreamedModel(Squashed(), hops, bounds, budget_bytes=10).plan(x)
    assert gc.isenabled()


def test_arguments_of_stream_are_checked() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=8), graph)
    graph = model.prepare(graph)
    for options, message in (
        ({"budget_bytes": "2GiB"}, "stream.budget_bytes"),
        ({"budget_bytes": 1 << 20, "spill": 5}, "stream.spill"),
        ({"budget_bytes": 1 << 20, "num_intervals": 2.5}, "stream.num_intervals"),
        ({"budget_bytes": 1 << 20, "num_intervals": 50_000}, "50000, expected 1 to 256"),
        ({"budget_bytes": 1 << 20, "num_intervals": 0}, "0, expected 1 to 256"),
        ({"budget_bytes": 1 << 20, "select": "some"}, "rows: 'some', expected one of auto, never, always"),
    ):
        with pytest.raises(InputError, match=message):
            stream(model, graph, **options)
    for other in (graph.topology, next(iter(MiniBatches(graph, fanouts=[2, 2], batch_size=4)))):
        with pytest.raises(InputError, match=r"stream\.graph"):
            stream(model, other, budget_bytes=1 << 20)
    assert len(stream(model, graph, budget_bytes=1 << 30, num_intervals=3).bounds) == 4
    with pytest.raises(InputError, match="memory policy: 'fifo', expected one of belady, dp"):
        StreamedModel(model, graph.hops(2), (0, 53), memory_policy="fifo")


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:99", "meta"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no such device: .*stream\.device.*cuda:N"):
        device_named(name)
    assert device_named("cpu") == torch.device("cpu")
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=8), graph)
    with pytest.raises(InputError, match="no such device"):
        stream(model, model.prepare(graph), budget_bytes=1 << 20, device=name)


def test_a_graph_on_a_device_is_to_be_left_on_the_host() -> None:
    require_on_host(torch.device("cpu"), "edges")
    with pytest.raises(
        InputError, match=r"its edges are on cuda:0.*Leave the graph on the CPU and pass device='cuda'"
    ):
        require_on_host(torch.device("cuda", 0), "edges")


def with_data(topology: Topology, dtype: torch.dtype, *shape: int) -> Topology:
    return topology.with_edge_data(own=torch.ones(topology.num_edges, *shape, dtype=dtype))


def test_hops_of_another_form_have_another_program() -> None:
    topology = random_topology(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), labelled_graph(30, 90))
    x = torch.randn(30, 8)
    more = with_data(topology, torch.float32)
    forms = [
        [topology, topology],
        # The edges of the second hop are other ones.
        [topology, random_topology(30, 90)],
        [more, more],
        [topology, more],
        [with_data(topology, torch.float64)] * 2,
        [with_data(topology, torch.float32, 2)] * 2,
    ]
    programs = {id(captured(model, hops, x, x_is_constant=True)) for hops in forms for _ in range(2)}
    assert len(programs) == len(forms)
    walked = [[gather.hop for gather in captured(model, hops, x, x_is_constant=True).gathers] for hops in forms[:2]]
    assert walked == [[0, 0], [0, 1]]


class Scaled(nn.Module):
    """A model that reads attributes of its own, and calls a layer that does."""

    num_hops = 1

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.drop = nn.Linear(8, 4), Weighted(), nn.Dropout(0.5)
        self.factors = [2.0]
        self.shifts = False

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        rows = self.layer(hops[0], self.first(x) * self.factors[0])
        return self.drop(rows + 1 if self.shifts else rows)


class Weighted(SagaLayer):
    """Messages by the weights of the edges."""

    edge_data = "weight"

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data.unsqueeze(1)


CHANGES: dict[str, Callable[[Scaled], object]] = {
    "a list in place": lambda model: model.factors.__setitem__(0, 5.0),
    "an attribute": lambda model: setattr(model, "shifts", True),
    "a module": lambda model: setattr(model, "first", nn.Linear(8, 6, bias=False)),
    "a parameter of another shape": lambda model: setattr(model.first, "bias", nn.Parameter(torch.ones(1))),
    "values of a parameter": lambda model: model.first.bias.data.fill_(3.0),
    "a frozen parameter": lambda model: model.first.requires_grad_(False),
    "an accumulator": lambda model: setattr(model.layer, "accumulator", "max"),
    "a function": lambda model: setattr(model.layer, "apply_vertex", lambda vertex, accum: accum * 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_between_calls_gives_what_it_gives_in_memory(change: str) -> None:
    torch.manual_seed(0)
    model, other = Scaled().eval(), random_topology(40, 90, seed=1)
    x = torch.randn(40, 8)
    # The second graph has the program of the first one, as long as the model stays the same.
    for topology in (random_topology(40, 300), other):
        hops = [topology.with_edge_data(weight=torch.rand(topology.num_edges))]
        streamed = StreamedModel(model, hops, (0, 10, 40))
        assert_close(streamed(x), model(hops, x))
    CHANGES[change](model)
    assert_close(streamed(x), model(hops, x))


def test_a_mode_that_is_switched_between_calls_counts() -> None:
    model, x = Scaled().eval(), torch.randn(40, 8)
    topology = random_topology(40, 300)
    hops = [topology.with_edge_data(weight=torch.rand(topology.num_edges))]
    streamed = StreamedModel(model, hops, (0, 10, 40))
    expected = streamed(x)
    model.drop.train()
    assert int((streamed(x) == 0).sum()) > int((expected == 0).sum())
    model.drop.eval()
    assert torch.equal(streamed(x), expected)
    model.first.register_forward_hook(lambda _module, _inputs, out: out * 2)
    with pytest.raises(LayerError, match="cannot have hooks"):
        streamed(x)


def test_programs_do_not_keep_the_model_alive() -> None:
    graph = labelled_graph(30, 90)
    model = build_model(ModelConfig(model="sage", hidden=8), graph)
    program = captured(model, graph.hops(2), graph.features, x_is_constant=True)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    del program
