"""Whatever the grid and its order, an epoch has the numbers of P = 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.graph import Graph, add_self_loops, declare_constant, relabel
from sagann.nn import GAT, GNN, MaxPoolGCN, build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.fit import cutter
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import Block, Step
from sagann.plan.sweeps import PassKey, Traversal
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph
from tests.runtime.streams import (
    WIDE,
    assert_all_close,
    assert_runs_right,
    dense,
    in_double,
    partial_loss,
    tight,
    zoo_model,
)
from tests.tolerances import assert_close, largest
from tests.zoo import DISTINCT

LIMITS = {torch.float64: 1e-11, torch.float32: 1e-5}
"Of a loss, and of each gradient, relative to the largest gradient."


def epoch(streamed: StreamedModel, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A loss, and its gradients of features and parameters."""
    loss = streamed.loss(x, partial_loss)
    return loss.detach(), list(torch.autograd.grad(loss, [x, *streamed.model.parameters()], materialize_grads=True))


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", DISTINCT)
def test_every_order_and_cut_of_every_model_has_the_numbers_of_one_interval(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    graph = labelled_graph()
    model = build_model(ModelConfig(model=name, hidden=8, heads=2, layers=2, dropout=0.0), graph).to(dtype)
    graph = model.prepare(graph)
    if dtype is torch.float64:
        graph = in_double(graph)
    x, hops = graph.features.to(dtype).requires_grad_(), graph.hops(model.num_hops)
    whole, gradients = epoch(StreamedModel(model, hops, (0, 53)), x)
    scale, limit = largest(*gradients), LIMITS[dtype]
    stored: list[bool] = []
    program = captured(model, hops, x, x_is_constant=False)
    for first, count in enumerate((2, 3, 7)):
        for second, traversal in enumerate((None, WIDE, Traversal(direction="ascending"))):
            # In single precision rounding is tried, not the order of steps.
            if dtype is torch.float32 and first != second:
                continue
            bounds = cutter(program, hops[0])(count) if (first + second) % 2 else equal_vertices(53, count)
            # Strips of one interval are also tried with undivided rows, in which every pass has one chunk for each.
            is_square = traversal is not None or count == 3
            streamed = tight(model, hops, x, bounds=bounds, traversal=traversal, is_square=is_square)
            found = streamed.plan(x, folded=True).plan
            loss, ours = epoch(streamed, x)
            streamed.close()
            assert found.num_intervals == count
            stored.append(found.stored_bytes > 0)
            assert float((loss - whole).abs()) <= limit * float(whole), (bounds, traversal)
            for mine, expected in zip(ours, gradients, strict=True):
                assert float((mine - expected).abs().max()) <= limit * scale, (bounds, traversal)
    # Of so small a graph some plans have nothing that must go.
    assert name == "appnp" or sum(stored) > len(stored) // 2


def test_results_that_a_gradient_reads_are_not_saved_besides() -> None:
    torch.manual_seed(0)
    model, hops, x = zoo_model("gat")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(partial_loss(model(hops, x), slice(0, len(x))), parameters)
    streamed = StreamedModel(model, hops, (0, 20, 53), budget_bytes=1 << 20)
    planned = streamed.plan(x, folded=True)
    sizes, steps = planned.schedule.sizes, [each for each in planned.plan.operations if isinstance(each, Step)]
    # The edges read rows of the first map. Its gradient, and that of the scores, read nothing else that the stage makes.
    (rows,) = sizes.saved_results(0)
    (saved,) = {block for step in steps for block in step.writes if block.stage == 0 and block.interval == 1}
    assert sizes.of(saved) == 0
    readers = [step for step in steps if saved in step.reads]
    assert readers
    assert all(Block("value", rows, 1) in step.reads for step in readers)
    for ours, other in zip(torch.autograd.grad(streamed.loss(x, partial_loss), parameters), expected, strict=True):
        assert_close(ours, other, scale=largest(*expected))


class _BothEnds(SagaLayer):
    """Messages that read a map of each end, and a parameter."""

    edge_data = "weight"

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.of_src, self.of_dst = nn.Linear(in_dim, 4, bias=False), nn.Linear(in_dim, 4, bias=False)
        self.shift = nn.Parameter(torch.randn(4))

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.of_src(edge.src) + torch.tanh(self.shift + edge.data.unsqueeze(-1) * self.of_dst(edge.dst))


@pytest.mark.parametrize("frozen", [[], ["of_dst"], ["of_src"], ["of_src", "of_dst"]])
def test_undivided_rows_are_those_of_a_model_of_which_everything_is_trained(frozen: list[str]) -> None:
    torch.manual_seed(0)
    graph = in_double(labelled_graph())
    x, hops = graph.features.double(), graph.hops(1)
    model = GNN([_BothEnds(graph.num_features)]).double()
    for name in frozen:
        model.get_submodule(f"layers.0.{name}").requires_grad_(False)
    program = captured(model, hops, x, x_is_constant=True)
    undivided = undivided_of(program, Gradients(program))
    assert undivided
    part = replace(PartIntervals.of_graph((0, 20, 53)), undivided=undivided)
    streamed = StreamedModel(model, hops, part.bounds, part=part, budget_bytes=1 << 20)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(streamed(declare_constant(x)).square().sum(), trained)
    expected = torch.autograd.grad(model(hops, x).square().sum(), trained)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, scale=largest(*expected))


COUNT = 4
PASSES = [PassKey("gather", number) for number in range(2)]
PASSES += [PassKey("gather_grad", number, each) for number in range(2) for each in (1, 2)]
SHUFFLED = {(key, strip): (2, 0, 3, 1) for key in PASSES for strip in range(COUNT)}
VISITS = [
    Traversal(direction="ascending"),
    Traversal(widths=dict.fromkeys(PASSES, 3)),
    Traversal(widths=dict.fromkeys(PASSES, 2), refined=SHUFFLED),
]


@pytest.mark.parametrize("name", ["gat", "maxpool-gcn"])
def test_any_visits_give_the_same_numbers(name: str) -> None:
    model, hops, x = zoo_model(name)
    expected, upstream = dense(model, hops, x.requires_grad_())
    budget_bytes = 2 * tight(model, hops, x, bounds=equal_vertices(53, COUNT)).budget_bytes
    for traversal in VISITS:
        streamed = StreamedModel(
            model, hops, equal_vertices(53, COUNT), budget_bytes=budget_bytes, traversal=traversal
        )
        assert_runs_right(streamed, x, expected, upstream)


def gradients_of_ties(graph: Graph, runs: Iterable[tuple[int, Traversal]]) -> list[Tensor]:
    """Gradients of features, of max-pooling over rows of zeros and ones, with each number of intervals and traversal."""
    x = torch.randint(0, 2, (40, 6), generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    layer = MaxPoolGCN(6, 6).double()
    # The rows stay as they are, so that most extrema are ties.
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.eye(6) if parameter.ndim == 2 else torch.zeros(6))
    model, hops = GNN([layer]), list(graph.hops(1))
    found = []
    for count, traversal in runs:
        out = StreamedModel(model, hops, equal_vertices(40, count), traversal=traversal)(x)
        found += torch.autograd.grad(out.square().sum(), x)
    return found


def shuffled(graph: Graph) -> Graph:
    return relabel(graph, torch.randperm(graph.num_vertices, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("change", [add_self_loops, shuffled], ids=["loops", "order"])
def test_ties_go_to_the_same_edges_for_any_number_of_intervals(change: Callable[[Graph], Graph]) -> None:
    graph = change(labelled_graph(40, 600))
    runs = [*((count, Traversal()) for count in (1, 2, 3, 7, 40)), *((COUNT, traversal) for traversal in VISITS)]
    first, *others = gradients_of_ties(graph, runs)
    for grad in others:
        assert_close(grad, first)


def test_dropout_of_edges_does_not_depend_on_the_order() -> None:
    graph = labelled_graph()
    model = GNN([GAT(graph.num_features, 4, num_heads=2, attention_dropout=0.5)])
    graph = model.prepare(graph)
    found = []
    for traversal in VISITS:
        streamed = StreamedModel(model, list(graph.hops(1)), equal_vertices(53, COUNT), traversal=traversal)
        torch.manual_seed(3)
        out = streamed(graph.features)
        found.append([out, *torch.autograd.grad(F.relu(out).sum(), list(model.parameters()))])
    for others in found[1:]:
        assert_all_close(others, found[0])
