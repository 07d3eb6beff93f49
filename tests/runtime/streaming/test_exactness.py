"""Whatever the grid and its order, an epoch has the numbers of P = 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sagann.graph import declare_constant
from sagann.nn import GNN, build_model
from sagann.nn.zoo import ModelConfig
from sagann.plan import equal_vertices
from sagann.plan.fit import cutter
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.intervals import PartIntervals
from sagann.plan.spec import verify
from sagann.plan.steps import Block, Step
from sagann.plan.sweeps import Traversal
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph
from tests.runtime.streams import WIDE, in_double, partial_loss, tight, zoo_model
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


@pytest.mark.parametrize("name", DISTINCT)
def test_pieces_have_the_bits_of_rows_that_lie_undivided(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, hops, x = zoo_model(name)
    x.requires_grad_()
    found = []
    for in_pieces, spill in ((False, None), (True, None), (True, tmp_path)):
        streamed = tight(model, hops, x, bounds=(0, 20, 31, 53), is_square=False, in_pieces=in_pieces, spill=spill)
        verify(streamed.plan(x, folded=True).plan)
        loss, gradients = epoch(streamed, x)
        found.append([streamed(x).detach(), loss, *gradients])
        streamed.close()
    assert all(all(map(torch.equal, others, found[0])) for others in found[1:])


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

    accumulator = "sum"
    edge_data = "weight"

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.of_src, self.of_dst = nn.Linear(in_dim, 4, bias=False), nn.Linear(in_dim, 4, bias=False)
        self.shift = nn.Parameter(torch.randn(4))

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.of_src(edge.src) + torch.tanh(self.shift + edge.data.unsqueeze(-1) * self.of_dst(edge.dst))

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


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
