"""Models run by intervals and chunks have the numbers of a dense run."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology, declare_constant
from sagann.kernels.dense import typed_linear
from sagann.nn import GAT, GIN, GNN, SAGE, MaxPoolGCN
from sagann.plan import equal_vertices
from sagann.plan.epoch import MemoryPolicy
from sagann.plan.gradients import Gradients, undivided_of
from sagann.plan.hops import SQUARE, hop_size
from sagann.plan.intervals import PartIntervals
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED, Move, Plan, Step
from sagann.runtime.streaming.capturing import captured
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.graphs import labelled_graph, random_topology
from tests.runtime.streams import (
    WIDE,
    assert_all_close,
    assert_runs_right,
    dense,
    partial_loss,
    tight,
    zoo_model,
)
from tests.threads import left_threads
from tests.tolerances import assert_close


def assert_streams_right(
    model: nn.Module, hops: Sequence[Topology], x: Tensor, bounds: Sequence[int], dialect: str = "auto"
) -> None:
    assert_runs_right(StreamedModel(model, hops, bounds, dialect=dialect), x, *dense(model, hops, x))


class ByType(SagaLayer):
    """Maps of the edge's type, among other things that an edge and a vertex do."""

    edge_data = "type"

    def __init__(self, width: int, types: int) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.randn(types, width, 4))
        self.gate, self.own, self.out = nn.Linear(width, 4), nn.Linear(width, 4), nn.Linear(4, 4)

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.sigmoid(self.gate(edge.dst)) * typed_linear(edge.src, edge.data, self.maps)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.tanh(self.out(accum) + self.own(vertex))


@pytest.mark.parametrize("counts", [(3, 5), (3, 1)])
def test_maps_of_different_numbers_of_types(counts: tuple[int, int]) -> None:
    class Two(SagaLayer):
        edge_data = "type"

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.randn(types, 5, 4)) for types in counts)

        def apply_edge(self, edge: Edge) -> Tensor:
            return typed_linear(edge.src, edge.data, self.first) * typed_linear(edge.dst, edge.data, self.second)

    # As many types as both have maps of.
    topology = random_topology(40, 300, types=min(counts))
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    assert_streams_right(GNN([Two()]).double(), [topology], x, equal_vertices(40, 3))


def test_types_beyond_the_maps_are_refused() -> None:
    for types in (1, 3):
        topology = random_topology(40, 300)
        edge_types = torch.zeros(topology.num_edges, dtype=torch.int64)
        # Beyond the rows that a layer is tried on.
        edge_types[-1] = types
        topology = topology.with_edge_data(type=edge_types)
        graph = Graph(topology=topology, features=torch.randn(40, 5), num_edge_types=types + 1)
        model = GNN([ByType(5, types)])
        with pytest.raises(InputError, match=f"there are {types} edge types"):
            stream(model, graph, budget_bytes=1 << 20)


@pytest.mark.parametrize(
    ("name", "on_disk", "keeps"),
    [("gat", True, True), ("gat", False, False), ("maxpool-gcn", True, False), ("ggnn", False, True)],
)
def test_any_budget_gives_the_same_numbers(
    name: str, on_disk: bool, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keeps:
        # Copying costs nothing: whatever has a matrix product keeps what it made.
        monkeypatch.setattr("sagann.plan.steps.Beside.flops_per_byte", 0.0)
    model, hops, x = zoo_model(name)
    expected, upstream = dense(model, hops, x.requires_grad_())
    plans: list[Plan] = []
    budget = UNLIMITED
    while True:
        spill = tmp_path if on_disk else None
        streamed = StreamedModel(model, hops, equal_vertices(53, 5), budget_bytes=budget, spill=spill)
        try:
            plans.append(streamed.plan(x)[2])
        except BudgetError:
            break
        assert_runs_right(streamed, x, expected, upstream)
        budget = plans[-1].peak_bytes * 3 // 4
    assert len(plans) >= 3
    assert plans[0].stored_bytes == 0
    assert plans[-1].stored_bytes > 0
    moved = {each.block.kind for plan in plans for each in plan.operations if isinstance(each, Move)}
    assert not keeps or "stage_saved" in moved
    del streamed
    assert list(tmp_path.iterdir()) == []
    assert [plan.peak_bytes for plan in plans] == sorted((plan.peak_bytes for plan in plans), reverse=True)


PLACES = ("memory", "cached files", "files")
"Where lies what is not in use. From files that no cache holds, threads bring it."


def spill_of(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """A spill folder for such a place, or none."""
    for module in ("sagann.runtime.blocks.host", "sagann.storage.mapped"):
        monkeypatch.setattr(f"{module}.is_cached", lambda *_: place == "cached files")
    return None if place == "memory" else folder


def unnamed_files(folder: Path) -> list[Path]:
    """The open files of this process that lay below a folder and have no name any more."""
    open_files = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [file for file in open_files if os.path.islink(file) and os.readlink(file).startswith(f"{folder}/")]


def stored_states(plan: Plan) -> set[int]:
    """The states that are moved out: 0 of the forward, others by the backward's passes."""
    stored = [each.block for each in plan.operations if isinstance(each, Move) and each.kind == "store"]
    return {block.backward_pass for block in stored if block.kind == "state"}


@pytest.mark.parametrize(("name", "on_disk"), [("gcn", True), ("maxpool-gcn", False), ("gat", True)])
def test_by_any_memory_policy_numbers_are_the_same(name: str, on_disk: bool, tmp_path: Path) -> None:
    model, hops, x = zoo_model(name)
    expected, upstream = dense(model, hops, x.requires_grad_())
    moved: dict[str, int] = {}
    for policy in get_args(MemoryPolicy):
        streamed = StreamedModel(
            model,
            hops,
            equal_vertices(53, 4),
            budget_bytes=1 << 20,
            spill=tmp_path if on_disk else None,
            memory_policy=policy,
        )
        moved[policy] = streamed.plan(x).plan.moved_bytes
        assert_runs_right(streamed, x, expected, upstream)
        # What is gathered of constant features is computed before the epochs.
        constant = declare_constant(x.detach().clone())
        assert any(gather.constant for gather in streamed.plan(constant).program.gathers) == (name == "gcn")
        assert_close(streamed(constant), expected[0])
        streamed.close()
    assert moved["dp"] <= moved["belady"]


class Model(nn.Module):
    """Layers, and a function of a test that says how they are used."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = SAGE(4, 5), GIN(5, 5), GAT(5, 4, num_heads=2)
        self.d = MaxPoolGCN(5, 5)
        self.norm = nn.LayerNorm(5)
        self.function = function

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.function(self, hops, x)


def jumping(m: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    one = torch.relu(m.norm(m.a(hops[0], x)))
    two = m.b(hops[0], one) + one
    return torch.cat([m.c(hops[0], two), two.tanh(), one, x * 2], -1)


def branching(m: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    one = m.a(hops[0], x)
    return m.b(hops[0], one) * m.d(hops[1], one) - m.d(hops[0], one.sigmoid())


class Bare(SagaLayer):
    """Nothing but a gather: its states are the largest blocks."""

    def apply_edge(self, edge: Edge) -> Tensor | tuple[Tensor, Tensor]:
        value = edge.src * edge.dst
        return (value.sum(-1), value) if self.accumulator == "softmax" else value


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "min", "softmax"])
@pytest.mark.parametrize("place", PLACES)
def test_states_of_every_accumulator_are_moved(
    accumulator: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(lambda m, h, x: m.two(h[0], m.one(h[0], x))).double()
    model.one, model.two = Bare(), Bare()
    model.one.accumulator = model.two.accumulator = accumulator
    topology = random_topology(53, 401)
    x = torch.randn(53, 16, dtype=torch.float64, requires_grad=True)
    expected, upstream = dense(model, [topology], x)
    spill = spill_of(place, tmp_path, monkeypatch)
    streamed = tight(model, [topology], x, bounds=equal_vertices(len(x), 7), spill=spill, traversal=WIDE)
    moved = stored_states(streamed.plan(x).plan)
    assert 0 in moved, "of the forward"
    assert len(moved) > 1, "of the backward"
    out = streamed(x)
    found = torch.autograd.grad(out, x, upstream)
    assert_all_close((out, *found), expected[:2])


@pytest.mark.parametrize("function", [jumping, branching])
def test_connections_across_layers_in_any_order(function: Callable[..., Tensor]) -> None:
    hops = [random_topology(31, 200), random_topology(31, 150, seed=1)]
    model = Model(function).double()
    x = torch.randn(31, 4, dtype=torch.float64, requires_grad=True)
    expected, upstream = dense(model, hops, x)
    for traversal in (None, WIDE):
        streamed = tight(model, hops, x, bounds=equal_vertices(31, 3), traversal=traversal)
        assert_runs_right(streamed, x, expected, upstream)
    for count, dialect in ((1, "auto"), (7, "auto"), (7, "naive")):
        streamed = StreamedModel(model, hops, equal_vertices(31, count), dialect=dialect)
        assert_runs_right(streamed, x, expected, upstream)


@pytest.mark.parametrize("frozen", ["a", "ab", "b"])
def test_the_backward_ends_where_nothing_is_trained_any_more(frozen: str) -> None:
    def three(m: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return m.c(hops[0], torch.relu(m.b(hops[0], torch.relu(m.a(hops[0], x)))))

    topology = random_topology(31, 200)
    model, x = Model(three).double(), torch.randn(31, 4, dtype=torch.float64)
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    parameters = [
        each for layer in (model.a, model.b, model.c) for each in layer.parameters() if each.requires_grad
    ]
    streamed = StreamedModel(model, [topology], equal_vertices(31, 3), budget_bytes=1 << 20)
    with using_engine(NaiveEngine()):
        expected = torch.autograd.grad(partial_loss(model([topology], x), slice(0, 31)), parameters)
    for loss in (partial_loss(streamed(x), slice(0, 31)), streamed.loss(x, partial_loss)):
        assert_all_close(torch.autograd.grad(loss, parameters), expected)
    steps = [each for each in streamed.plan(x).plan.operations if isinstance(each, Step)]
    differentiated = {step.number for step in steps if step.kind == "gather_grad"}
    # GIN's maps come after its gather.
    assert differentiated == {"a": {2}, "ab": {2}, "b": {1, 2}}[frozen]


def test_what_cannot_be_streamed_is_refused() -> None:
    listed, topology = SagaLayer(), random_topology(31, 200)
    listed.accumulator, listed.max_degree = "concat", 40
    with pytest.raises(LayerError, match="concat"):
        StreamedModel(GNN([listed]), [topology], (0, 31))(torch.randn(31, 4))
    streamed = StreamedModel(Model(jumping), [topology], (0, 31))
    x = torch.randn(31, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(streamed(x).square().sum(), x, create_graph=True)
    with pytest.raises(InputError, match="gradient of a gradient"):
        grad.sum().backward()
    total = streamed(x).sum()
    total.backward(retain_graph=True)
    with pytest.raises(InputError, match="ran twice"):
        total.backward()


def test_a_result_that_was_gathered_and_one_that_was_not() -> None:
    topology = random_topology(31, 200)
    x = torch.randn(31, 4, dtype=torch.float64, requires_grad=True)
    for function in (lambda m, h, x: m.plain(h[0], x), lambda m, h, x: x, lambda m, h, x: m.plain(h[0], x) * 0 + x):
        model = Model(function).double()
        model.plain = SagaLayer()
        assert_streams_right(model, [topology], x, equal_vertices(31, 3))


class Gated(SagaLayer):
    """Gradients at each end of an edge, and of a parameter, read some of its numbers."""

    edge_data = ("scale", "shift")

    def __init__(self) -> None:
        super().__init__()
        self.own, self.gate = nn.Linear(4, 4), nn.Parameter(torch.randn(4))

    def apply_edge(self, edge: Edge) -> Tensor:
        gate = torch.sigmoid(edge.dst * self.gate + edge.data["shift"].unsqueeze(-1))
        return gate + edge.src * edge.data["scale"].unsqueeze(-1)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return torch.tanh(accum) + self.own(vertex)


@pytest.mark.parametrize("trained", ["all", "x", "gates", "maps"])
@pytest.mark.parametrize("is_square", [True, False])
def test_chunks_have_all_edge_data_that_passes_read_whatever_is_trained(trained: str, is_square: bool) -> None:
    torch.manual_seed(0)
    topology = random_topology(31, 200)
    data = {name: torch.rand(topology.num_edges).double() for name in ("scale", "shift", "unread")}
    hops = [topology.with_edge_data(**data)] * 2
    x = torch.randn(31, 4, dtype=torch.float64, requires_grad=trained in ("all", "x"))
    model = GNN([Gated(), Gated()]).double()
    for name, parameter in model.named_parameters():
        kind = "gates" if name.endswith("gate") else "maps"
        parameter.requires_grad_(trained in ("all", kind))
    leaves = [each for each in (x, *model.parameters()) if each.requires_grad]
    with using_engine(NaiveEngine()):
        expected = torch.autograd.grad(partial_loss(model(hops, x), slice(0, 31)), leaves)
    bounds = equal_vertices(31, 3)
    part = PartIntervals.of_graph(bounds)
    if not is_square:
        program = captured(model, hops, x, x_is_constant=False)
        part = replace(part, undivided=undivided_of(program, Gradients(program, wanted_x=x.requires_grad)))
        assert part.undivided
    streamed = StreamedModel(model, hops, bounds, budget_bytes=1 << 20, part=part)
    assert_all_close(torch.autograd.grad(streamed.loss(x, partial_loss), leaves), expected)


def test_the_room_that_chunks_take_on_disk_is_known_before(tmp_path: Path) -> None:
    topology = random_topology(400, 900)
    bounds = equal_vertices(400, 9)
    streamed = StreamedModel(Model(jumping), [topology] * 2, bounds, spill=tmp_path)
    streamed.plan(torch.randn(400, 4))
    (written,) = (each.stat().st_size for each in unnamed_files(tmp_path))
    foretold = hop_size(topology, bounds).kept_bytes(PartIntervals.of_graph(bounds), SQUARE)
    assert 0.8 * foretold < written <= foretold
    streamed.close()
    assert unnamed_files(tmp_path) == []


def test_a_loss_may_not_depend_on_something_else_that_is_trained() -> None:
    model = Model(jumping)
    streamed = StreamedModel(model, [random_topology(31, 200)], equal_vertices(31, 3))
    x = torch.randn(31, 4)
    with pytest.raises(InputError, match="besides the model's result"):
        streamed.loss(x, lambda z, vertices: z.sum() + model.norm.weight.sum())
    streamed.loss(x, lambda z, vertices: torch.zeros(())).backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_a_change_of_constant_features_is_seen(tmp_path: Path) -> None:
    model, hops, x = zoo_model("sage")
    for options in ({"spill": tmp_path}, {"budget_bytes": 1 << 20}):
        x = declare_constant(x.clone())
        streamed = StreamedModel(model, hops, equal_vertices(53, 3), **options)
        for factor in (1.0, 1.0, 1.5):
            x *= factor
            expected, upstream = dense(model, hops, x.clone().requires_grad_())
            out = streamed(x)
            found = torch.autograd.grad(out, list(model.parameters()), upstream)
            assert_all_close((out, *found), (expected[0], *expected[2:]))
            # Evaluation has a program of its own, and what it keeps; both stay.
            with torch.no_grad():
                assert_close(streamed.eval()(x), expected[0])
            streamed.train()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_in_an_epoch_the_next_one_is_right(error: type[BaseException], tmp_path: Path) -> None:
    topology = random_topology(60, 300)
    model = Model(jumping)
    x = torch.randn(60, 4)
    streamed = StreamedModel(model, [topology], equal_vertices(60, 4), budget_bytes=30_000, spill=tmp_path)
    streamed.loss(x, lambda z, vertices: z.sum()).backward()

    def failing(z: Tensor, vertices: slice) -> Tensor:
        if vertices.start:
            raise error
        return z.sum()

    files = len(unnamed_files(tmp_path))
    for _ in range(3):
        with pytest.raises(error):
            streamed.loss(x, failing)
    assert not left_threads()
    assert len(unnamed_files(tmp_path)) == files > 0
    loss = streamed.loss(x, lambda z, vertices: z.sum())
    assert_close(loss, model([topology], x).sum(), scale=1e3)


def test_first_calls_may_come_from_several_threads() -> None:
    topology, x = random_topology(60, 300), torch.randn(60, 4)
    model, begin = Model(jumping), threading.Barrier(3)
    in_memory = copy.deepcopy(model)
    expected = copy.deepcopy(model)([topology], x)
    streamed = [StreamedModel(model, [topology], equal_vertices(60, count)) for count in (2, 3)]

    def run(call: Callable[[], Tensor]) -> Tensor:
        begin.wait()
        return call()

    with ThreadPoolExecutor(3) as pool:
        calls = [*(partial(each, x) for each in streamed), partial(in_memory, [topology], x)]
        for found in pool.map(run, calls):
            assert_close(found, expected)


def test_input_that_does_not_fit_is_refused() -> None:
    topology = random_topology(31, 200)
    streamed = StreamedModel(Model(jumping), [topology], equal_vertices(31, 3))
    for x in (torch.randn(20, 4), torch.randn(40, 4), torch.randn(31, 4).to_sparse()):
        with pytest.raises(InputError, match="expected rows of 31 vertices"):
            streamed(x)
    for x in (None, [1.0], torch.tensor(1.0)):
        with pytest.raises(InputError, match=r"\(in StreamedModel.x\). Pass features with a row for every vertex"):
            streamed(x)
    weighted = topology.with_edge_data(weight=torch.ones(topology.num_edges, requires_grad=True))
    with pytest.raises(InputError, match="edge data gets no gradient"):
        StreamedModel(Model(jumping), [weighted], (0, 31))(torch.randn(31, 4))
    cutting = StreamedModel(Model(lambda m, h, x: m.a(h[0], x).detach()), [topology], equal_vertices(31, 3))
    with pytest.raises(LayerError, match="cannot be differentiated"):
        cutting.loss(torch.randn(31, 4), lambda z, vertices: z.sum())
    for wrong in (lambda z, vertices: z.sum(1), lambda z, vertices: 1.0, lambda z, vertices: None):
        with pytest.raises(InputError, match="no scalar"):
            streamed.loss(torch.randn(31, 4), wrong)
    for changing in (lambda z, vertices: z.mul_(2).sum(), lambda z, vertices: z[:, :1].relu_().sum()):
        with pytest.raises(InputError, match="loss_of changes the rows that it is given in place"):
            streamed.loss(torch.randn(31, 4), changing)
    with pytest.raises(InputError, match="cannot be copied"):
        copy.deepcopy(streamed)
    keeping = Model(jumping)
    keeping.a.doubled = 2 * next(keeping.a.parameters())
    with pytest.raises(LayerError, match=r"must be copyable: .* \(in \w+\.doubled\)\. Make what is computed"):
        StreamedModel(keeping, [topology], (0, 31))(torch.randn(31, 4))
    lazy = Model(lambda m, h, x: m.lazy(x))
    lazy.lazy = nn.LazyLinear(3)
    with pytest.raises(LayerError, match="gets its shape when the model first runs"):
        stream(lazy, labelled_graph(), budget_bytes=1 << 20)


def test_random_parameters_are_the_same_in_the_backward() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64)
    model = Model(lambda m, h, x: m.a(h[0], x @ nn.functional.dropout(m.mixed, 0.5))).double()
    model.mixed = nn.Parameter(weight)
    x = torch.randn(31, 4, dtype=torch.float64)
    with torch.no_grad():
        model.a.neighbours.bias.zero_()
    total = StreamedModel(model, [random_topology(31, 200)], equal_vertices(31, 3))(x).sum()
    (grad,) = torch.autograd.grad(total, model.mixed)
    # The result is linear in the parameter.
    torch.testing.assert_close((grad * weight).sum(), total.detach())


def test_a_mask_that_several_stages_read_is_drawn_once() -> None:
    def masked(m: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
        keep = F.dropout(torch.ones(len(x), 1), 0.5)
        before = x * keep
        return torch.cat([before, 0 * m.plain(hops[0], before) + keep], -1)

    model = Model(masked)
    model.plain = SagaLayer()
    streamed = StreamedModel(model, [random_topology(31, 200)], equal_vertices(31, 3))
    x = torch.ones(31, 1)
    out = streamed(x)
    assert out[:, 0].unique().tolist() == [0, 2]
    assert torch.equal(out[:, 0], out[:, 1])
    assert streamed.plan(x).program.random
    assert not torch.equal(out, streamed(x))
