"""Whatever the order in which chunks are visited, an epoch has the numbers of a dense run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sagann.graph import Graph, add_self_loops, relabel
from sagann.nn import GAT, GNN, MaxPoolGCN
from sagann.plan import equal_vertices
from sagann.plan.sweeps import PassKey, Traversal
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import labelled_graph
from tests.runtime.streams import assert_all_close, assert_runs_right, dense, tight, zoo_model
from tests.tolerances import assert_close

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
