"""An epoch that several devices share has the bits of one device with the same grid, however late their copies run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError
from sagann.graph import Topology, declare_constant
from sagann.nn import GNN
from sagann.plan import equal_vertices
from sagann.plan.dealing import EACH
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.residency import BudgetError
from sagann.plan.selection import ALWAYS
from sagann.plan.spec import verify
from sagann.plan.steps import DEVICE, Move
from sagann.report.plan_text import plan_text
from sagann.runtime.device.residents import DeviceResidents
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.epoch import stage_on
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import SagaLayer
from tests.graphs import labelled_graph, odd_topologies
from tests.runtime.device.late_streams import LateStreams
from tests.runtime.device.several import NAMES, ROUTES, chain, late, note_steps, ring, streamed_on
from tests.runtime.streaming.norm_models import Between, Detached, Messages, Stack, given
from tests.runtime.streams import assert_all_close, dense, in_double, partial_loss, zoo_model
from tests.threads import left_threads


@pytest.fixture(autouse=True)
def _steps_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    note_steps(monkeypatch)


def numbers(streamed: StreamedModel, x: Tensor, upstream: Tensor) -> list[Tensor]:
    """Result and gradients of a call, loss and gradients of a folded epoch, and the buffers after both."""
    leaves = [each for each in (x, *streamed.model.parameters()) if each.requires_grad]
    torch.manual_seed(7)
    out = streamed(x)
    found = [out, *torch.autograd.grad(out, leaves, upstream, materialize_grads=True)]
    loss = streamed.loss(x, partial_loss)
    found += [loss, *torch.autograd.grad(loss, leaves, materialize_grads=True)]
    return [*found, *(buffer.clone() for buffer in streamed.model.buffers())]


def reset(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()


def within(streamed: StreamedModel, x: Tensor, share: float) -> int:
    """A budget of a share of what epochs take that have room for all blocks, or the least that they need."""
    budget_bytes = int(share * max(streamed.plan(x, folded=folded).plan.peak_bytes for folded in (False, True)))
    while True:
        streamed.budget_bytes = budget_bytes
        streamed._plans.clear()
        try:
            for folded in (False, True):
                streamed._require_fit(x, folded)
            return budget_bytes
        except BudgetError as error:
            budget_bytes = error.needed_bytes


def require_bits_of_one(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    bounds: Sequence[int],
    route: str,
    *,
    share: float = 0.5,
    spill: Path | None = None,
    is_undivided: bool = False,
) -> tuple[list[Tensor], list[LateStreams]]:
    """Require that several devices within little memory and one with much have the same bits; returns the numbers, and the devices."""
    count, way = ROUTES[route]
    lanes = late(count)
    program = streamed_on([DEVICE], model, hops, bounds, late(1)).plan(x).program
    undivided = undivided_of(program, Gradients(program, wanted_x=x.requires_grad)) if is_undivided else frozenset()
    options = {"route": way, "undivided": undivided}
    few = streamed_on(NAMES[:count], model, hops, bounds, lanes, spill=spill, **options)
    few.budget_bytes = budget_bytes = within(few, x, share)
    few.close()
    upstream = torch.randn_like(few(x).detach())
    reset(model)
    found = numbers(few, x, upstream)
    reset(model)
    for folded in (False, True):
        planned = few.plan(x, folded=folded)
        peaks = verify(planned.plan)
        assert max(peaks.values()) <= budget_bytes
        assert len(peaks) == min(count, len(bounds) - 1)
    traversal = planned.schedule.traversal
    alone = streamed_on([DEVICE] * count, model, hops, bounds, [LateStreams()], traversal=traversal, **options)
    for mine, theirs in zip(found, numbers(alone, x, upstream), strict=True):
        assert torch.equal(mine, theirs)
    few.close()
    assert not any(each.unforeseen for each in lanes)
    assert not left_threads("sagann-load")
    return found, lanes


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["gcn", "gat", "ggnn", "maxpool-gcn"])
def test_numbers_are_those_of_one_device_and_of_a_dense_run(name: str, route: str) -> None:
    model, hops, x = zoo_model(name)
    x.requires_grad_()
    count = ROUTES[route][0]
    # More intervals than a round has, of which the last one is short.
    found, lanes = require_bits_of_one(model, hops, x, equal_vertices(len(x), 2 * count + 1), route)
    assert_all_close(found[:1], dense(model, hops, x)[0][:1])
    wanted = torch.autograd.grad(partial_loss(model(hops, x), slice(0, len(x))), [x, *model.parameters()])
    assert_all_close(found[-len(wanted) :], wanted)
    assert all(each.copied["load"] > 0 for each in lanes)
    assert any("exchange" in each.copied for each in lanes) == ("each" not in route)


@pytest.mark.parametrize("route", ["each of 2", "ring of 8"])
@pytest.mark.parametrize("name", ["no edges", "one hub", "skewed"])
def test_chunks_and_intervals_may_be_empty(name: str, route: str) -> None:
    graph = in_double(replace(labelled_graph(), topology=odd_topologies()["skewed"]))
    topology = odd_topologies()[name]
    x = graph.features[: topology.num_dst].double().requires_grad_()
    model, _, _ = zoo_model("sage")
    bounds = (0, 0, *equal_vertices(len(x), 3)[1:], len(x))
    found, _ = require_bits_of_one(model, [topology] * 2, x, bounds, route)
    assert_all_close(found[:1], dense(model, [topology] * 2, x)[0][:1])


@pytest.mark.parametrize("route", ["each of 2", "ring of 3"])
def test_rows_are_picked_for_chunks_of_each_device(route: str) -> None:
    model, hops, x = zoo_model("maxpool-gcn")
    x.requires_grad_()
    count, way = ROUTES[route]
    lanes, bounds = late(count), equal_vertices(len(x), 2 * count + 1)
    few = streamed_on(NAMES[:count], model, hops, bounds, lanes, route=way, selection=ALWAYS)
    few.budget_bytes = within(few, x, 0.3)
    few.close()
    loss, wanted = few.loss(x, partial_loss), partial_loss(model(hops, x), slice(0, len(x)))
    assert few.plan(x, folded=True).plan.picked_bytes
    leaves = [x, *model.parameters()]
    found = [loss, *torch.autograd.grad(loss, leaves, materialize_grads=True)]
    assert_all_close(found, [wanted, *torch.autograd.grad(wanted, leaves, materialize_grads=True)])
    assert not any(each.unforeseen for each in lanes)


def test_the_dynamic_program_is_of_one_device() -> None:
    model, hops, x = zoo_model("gcn")
    with pytest.raises(InputError, match="no memory policy of several devices: 'dp', expected one of belady"):
        streamed_on(NAMES[:2], model, hops, equal_vertices(len(x), 5), late(2), memory_policy="dp")


class Filled(SagaLayer):
    """A layer that makes a tensor, whose device a trace names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.tanh(self.linear(accum)) * torch.full_like(vertex, 0.5)


def test_stages_make_their_tensors_where_they_run() -> None:
    _, hops, x = zoo_model("gcn")
    x.requires_grad_()
    model = GNN([Filled(), Filled()]).double()
    program = streamed_on([DEVICE], model, hops, (0, len(x)), late(1)).plan(x).program
    made = stage_on(program.stages[1], torch.device("meta")).module.graph.nodes
    assert [node.kwargs["device"].type for node in made if "device" in node.kwargs] == ["meta"]
    found, _ = require_bits_of_one(model, hops, x, equal_vertices(len(x), 5), "chain of 2")
    assert_all_close(found[:1], dense(model, hops, x)[0][:1])


@pytest.mark.parametrize("build", [Between, partial(Stack, Messages), partial(Stack, Detached)])
def test_means_of_batch_norms_are_added_in_the_order_of_the_devices(build: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    hops, x = given()
    model = build(x.shape[1]).double()
    require_bits_of_one(model, [hops[0]] * model.num_hops, x, equal_vertices(len(x), 5), "chain of 2")


@pytest.mark.parametrize("route", ["each of 2", "chain of 2", "ring of 3"])
def test_what_is_read_at_random_may_lie_whole_on_each_device(route: str) -> None:
    for name in ("gcn", "sage"):
        model, hops, x = zoo_model(name)
        x.requires_grad_()
        require_bits_of_one(model, hops, x, equal_vertices(len(x), 5), route, share=1.2, is_undivided=True)


@pytest.mark.parametrize("route", ["each of 2", "ring of 3"])
def test_files_and_constants_are_shared(route: str, tmp_path: Path) -> None:
    model, hops, x = zoo_model("sage")
    require_bits_of_one(model, hops, declare_constant(x), equal_vertices(len(x), 5), route, spill=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_along_a_chain_and_round_a_ring_rows_of_sources_are_loaded_once() -> None:
    model, hops, x = zoo_model("gat", num_vertices=400)
    loaded = {}
    for name, route in (("each", EACH), ("chain", chain(2)), ("ring", ring(2, 2))):
        lanes = late(2)
        streamed = streamed_on(NAMES[:2], model, hops, equal_vertices(len(x), 16), lanes, route=route)
        streamed.budget_bytes = within(streamed, x, 0.3)
        streamed.close()
        streamed.loss(x, partial_loss).backward()
        planned = streamed.plan(x, folded=True)
        loads = [each for each in planned.plan.operations if isinstance(each, Move) and each.kind == "load"]
        # Edges come from the host, whatever the route.
        of_host = sum(each.num_bytes for each in loads if not each.peer or each.block.kind == "edges")
        assert sum(each.copied["load"] for each in lanes) == pytest.approx(of_host, rel=0.01)
        assert ("From device to device: vertex data" in plan_text(planned)) == (name != "each")
        loaded[name] = sum(each.num_bytes for each in loads if each.block.kind == "value" and not each.peer)
    assert loaded["chain"] <= 0.8 * loaded["each"]
    assert loaded["ring"] <= 0.8 * loaded["each"]


@pytest.mark.parametrize("method", ["load", "pass_on", "store"])
def test_after_ctrl_c_nothing_is_copied(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed, x, lanes = chained()
    expected = numbers(streamed, x, torch.ones(len(x), 3, dtype=x.dtype))
    with monkeypatch.context() as patches:
        patches.setattr(DeviceResidents, method, failing(getattr(DeviceResidents, method), KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            streamed.loss(x, partial_loss).backward()
    gc.collect()
    assert not left_threads("sagann-load")
    assert not any(queue for each in lanes for queue in each._queues.values())
    for mine, theirs in zip(numbers(streamed, x, torch.ones(len(x), 3, dtype=x.dtype)), expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("method", ["load", "pass_on"])
def test_out_of_memory_the_epoch_begins_again_with_less_on_each_device(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed, x, _ = chained()
    expected = numbers(streamed, x, torch.ones(len(x), 3, dtype=x.dtype))
    before = streamed.budget_bytes
    failed = failing(getattr(DeviceResidents, method), torch.OutOfMemoryError)
    monkeypatch.setattr(DeviceResidents, method, failed)
    with pytest.warns(RuntimeWarning, match="begins again"):
        found = numbers(streamed, x, torch.ones(len(x), 3, dtype=x.dtype))
    assert streamed.budget_bytes <= before // 2
    assert_all_close(found, expected)
    plan = streamed.plan(x).plan
    assert plan.num_intervals % 2 == 0
    assert max(verify(plan).values()) <= streamed.budget_bytes


def chained() -> tuple[StreamedModel, Tensor, list[LateStreams]]:
    """A model on two devices, of which one copies from the other."""
    model, hops, x = zoo_model("gcn")
    x.requires_grad_()
    lanes = late(2)
    streamed = streamed_on(NAMES[:2], model, hops, equal_vertices(len(x), 5), lanes, route=chain(2))
    streamed.budget_bytes = within(streamed, x, 0.6)
    streamed.close()
    return streamed, x, lanes


def failing(method: Callable[..., Any], error: type[BaseException]) -> Callable[..., Any]:
    """The method, whose third call fails."""
    calls: list[None] = []

    def called(*given: Any) -> Any:
        calls.append(None)
        if len(calls) == 3:
            raise error("stopped here")
        return method(*given)

    return called


def test_the_steps_and_copies_of_all_devices_are_recorded() -> None:
    model, hops, x = zoo_model("gat")
    streamed = streamed_on(NAMES[:3], model, hops, equal_vertices(len(x), 7), late(3), route=ring(3, 3))
    streamed.timeline = recorder = Recorder()
    streamed.loss(x, partial_loss).backward()
    plan = streamed.plan(x, folded=True).plan
    moves = [each for each in plan.operations if isinstance(each, Move)]
    assert sum(each.num_bytes for each in recorder.of("load")) == plan.loaded_bytes
    passed_on = sum(each.num_bytes for each in moves if each.kind == "load" and each.peer)
    assert 0 < sum(each.num_bytes for each in recorder.of("exchange")) <= passed_on


def test_a_move_that_is_only_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, hops, x = zoo_model("gcn")
    streamed = streamed_on(NAMES[:2], model, hops, equal_vertices(len(x), 3), late(2))
    planned = streamed.plan(x)
    operations = list(planned.plan.operations)
    (first, *_) = [each for each in operations if isinstance(each, Move)]
    operations.insert(operations.index(first) + 1, first._replace(kind="all-reduce"))
    plan = replace(planned.plan, operations=tuple(operations), waits=())
    monkeypatch.setattr(streamed, "plan", lambda *_, **__: planned._replace(plan=plan))
    with pytest.raises(InputError, match="only simulated: all-reduce"):
        streamed(x)
