"""A device that runs out of memory in an epoch: once it begins again with less, and then it is an error."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn

from sagann.byte_size import with_exact
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from sagann.plan import equal_vertices
from sagann.plan.steps import Step
from sagann.runtime.streaming.call import DeviceMemoryError
from sagann.runtime.streaming.executor import Executor
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import labelled_graph
from tests.runtime.streams import assert_all_close

BUDGET = 60_000


@pytest.fixture
def prepared() -> tuple[nn.Module, Graph, Tensor]:
    torch.manual_seed(0)
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=8, layers=2, dropout=0.5), graph)
    graph = model.prepare(graph)
    return model, graph, graph.features.clone().requires_grad_()


def streamed_of(
    prepared: tuple[nn.Module, Graph, Tensor], budget_bytes: int = BUDGET, *, count: int = 4, trains: bool = True
) -> StreamedModel:
    model, graph, _ = prepared
    hops, bounds = graph.hops(model.num_hops), equal_vertices(53, count)
    return StreamedModel(model, hops, bounds, budget_bytes=budget_bytes, trains=trains, dialect="naive")


def failing(monkeypatch: pytest.MonkeyPatch, step: str, times: int) -> None:
    """Have a step run out of memory when an epoch runs it for the second time, in so many epochs."""
    failed, real = 0, getattr(Executor, step)
    runs: WeakKeyDictionary[Executor, int] = WeakKeyDictionary()

    def run(self: Executor, at: Step) -> None:
        nonlocal failed
        real(self, at)
        runs[self] = runs.get(self, 0) + 1
        if runs[self] == 2 and failed < times:
            failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd much more.")

    monkeypatch.setattr(Executor, step, run)


def loss_of(rows: Tensor, vertices: slice) -> Tensor:
    return rows.square().sum()


def epoch(streamed: StreamedModel, x: Tensor, *, folded: bool) -> list[Tensor]:
    torch.manual_seed(1)
    loss = streamed.loss(x, loss_of) if folded else streamed(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *streamed.model.parameters()])]


@pytest.mark.parametrize(("step", "folded"), [("_gather", True), ("_finish", False)])
def test_the_epoch_begins_again_and_has_the_same_numbers(
    step: str, folded: bool, prepared: tuple[nn.Module, Graph, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = prepared[2]
    expected = epoch(streamed_of(prepared), x, folded=folded)
    failing(monkeypatch, step, 1)
    streamed = streamed_of(prepared)
    before = min(BUDGET, streamed.plan(x, folded=folded).plan.peak_bytes)
    with pytest.warns(RuntimeWarning) as warned:
        found = epoch(streamed, x, folded=folded)
    (message,) = {str(each.message) for each in warned}
    assert f"the budget was {with_exact(before)}, and is {with_exact(before // 2)} from now on" in message
    assert "Tried to allocate 2.00 GiB. (in StreamedModel). The epoch begins again." in message
    assert "And much more" not in message
    assert streamed.plan(x, folded=folded).plan.peak_bytes <= before // 2
    # It stays so.
    for numbers in (found, epoch(streamed, x, folded=folded)):
        assert_all_close(numbers, expected)


def test_the_second_time_is_an_error(
    prepared: tuple[nn.Module, Graph, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "_finish", 2)
    streamed = streamed_of(prepared)
    with pytest.warns(RuntimeWarning, match="begins again"), pytest.raises(torch.OutOfMemoryError) as caught:
        epoch(streamed, prepared[2], folded=True)
    assert isinstance(caught.value, DeviceMemoryError)
    assert f"with a budget of {with_exact(streamed.budget_bytes)}; CUDA out of memory." in str(caught.value)
    assert f"Lower the budget below {with_exact(streamed.budget_bytes)}" in caught.value.hint


def test_the_backward_names_a_budget(
    prepared: tuple[nn.Module, Graph, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, "_finish_grad", 1)
    with pytest.raises(DeviceMemoryError, match="CUDA out of memory") as caught:
        epoch(streamed_of(prepared), prepared[2], folded=True)
    assert "Lower the budget below" in caught.value.hint


def test_where_less_cannot_be_met_the_error_says_what_is_needed(
    prepared: tuple[nn.Module, Graph, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = prepared[2]
    monkeypatch.setattr("sagann.plan.fit.MOST_INTERVALS", 3)
    needed = streamed_of(prepared, 1 << 30)
    budget = needed.plan(x).plan.peak_bytes
    while True:
        try:
            streamed_of(prepared, budget * 9 // 10).plan(x)
        except ValueError:
            break
        budget = budget * 9 // 10
    failing(monkeypatch, "_gather", 1)
    with pytest.raises(DeviceMemoryError, match=r"At least .*\d+ bytes\)? must be free\."):
        streamed_of(prepared, budget)(x)
