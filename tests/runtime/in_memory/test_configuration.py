"""Programs hold as long as what they were traced from: layers that change, threads, kept gathers."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.compiler import LayerProgram
from sagann.graph import Topology
from sagann.graph.feature_store import declare_constant
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import Edge, SagaLayer
from sagann.saga.engine import NaiveEngine, using_engine
from tests.graphs import random_topology


class Flexible(SagaLayer):
    """A layer with something of every kind to change."""

    edge_data = "weight"

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4).double(), nn.Linear(6, 4).double()
        self.act: Callable[[Tensor], Tensor] = torch.relu
        self.factors: Any = [2.0]

    def apply_edge(self, edge: Edge) -> Tensor:
        return self.act(self.first(edge.src) + self.second(edge.dst)) * self.factors[0] * edge.data.unsqueeze(1)


@pytest.fixture
def topology() -> Topology:
    made = random_topology(50, 300)
    return made.with_edge_data(weight=torch.linspace(0.5, 1.5, made.num_edges, dtype=torch.float64))


def assert_as_written(layer: SagaLayer, topology: Topology, x: Tensor, engine: CompiledEngine) -> None:
    with using_engine(engine):
        compiled = layer(topology, x)
    with using_engine(NaiveEngine()):
        plain = layer(topology, x)
    assert compiled.dtype == plain.dtype
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-10)


def _tie(layer: Flexible) -> None:
    layer.second.weight = layer.first.weight


def _untie(layer: Flexible) -> None:
    _tie(layer)
    layer.second.weight = nn.Parameter(torch.ones(4, 6, dtype=torch.float64))


CHANGES: dict[str, Callable[[Flexible], object]] = {
    "a builtin function": lambda layer: setattr(layer, "act", torch.tanh),
    "a lambda": lambda layer: setattr(layer, "act", lambda value: value * 3),
    "a list in place": lambda layer: layer.factors.__setitem__(0, 5.0),
    "a tuple": lambda layer: setattr(layer, "factors", (7.0, [1])),
    "a hook": lambda layer: layer.first.register_forward_hook(lambda _module, _inputs, out: out * 2),
    "tied weights": _tie,
    "weights parted again": _untie,
    "another module": lambda layer: setattr(layer, "first", nn.Linear(6, 4, bias=False).double()),
    "a frozen parameter": lambda layer: layer.first.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_changes_is_compiled_anew(change: str, topology: Topology) -> None:
    torch.manual_seed(0)
    # Programs are made the same for every dialect, and this one generates no kernels.
    layer, engine = Flexible(), CompiledEngine(dialect="naive")
    x = torch.randn(50, 6, dtype=torch.float64, requires_grad=True)
    assert_as_written(layer, topology, x, engine)
    CHANGES[change](layer)
    assert_as_written(layer, topology, x, engine)


class Slope:
    """Any object with a method."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, value: Tensor) -> Tensor:
        return torch.where(value > 0, value, value * self.slope)

    of = __call__


HIDDEN: dict[str, Callable[[Any], tuple[Callable[[Tensor], Tensor], Any]]] = {
    "a module": lambda module: (_through([module]), module),
    "modules in a module": lambda module: (_through([nn.Sequential(nn.Identity(), module)]), module),
    "a method": lambda module: (module.forward, module),
    "a method of an object": lambda module: ((slope := Slope(0.1)).of, slope),
}


def _through(modules: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    return lambda value: modules[0](value)


@pytest.mark.parametrize("kind", HIDDEN)
def test_what_a_layer_holds_without_its_knowing_is_looked_into(kind: str, topology: Topology) -> None:
    layer, engine = Flexible(), CompiledEngine(dialect="naive")
    x = torch.randn(50, 6, dtype=torch.float64)
    layer.act, held = HIDDEN[kind](nn.LeakyReLU(0.1))
    assert_as_written(layer, topology, x, engine)
    setattr(held, "slope" if isinstance(held, Slope) else "negative_slope", 0.9)
    assert_as_written(layer, topology, x, engine)
    # Others may come to stand where these stood in memory.
    for slope in (0.2, 0.3, 0.4, 0.5):
        layer.act, held = HIDDEN[kind](nn.LeakyReLU(slope))
        assert_as_written(layer, topology, x, engine)


def test_a_mode_that_a_layer_does_not_know_of_counts(topology: Topology) -> None:
    layer, engine = Flexible(), CompiledEngine(dialect="naive")
    dropout = nn.Dropout(0.99)
    layer.act = _through([dropout])
    x = torch.randn(50, 6, dtype=torch.float64)
    with using_engine(engine):
        layer(topology, x)
    dropout.eval()
    assert_as_written(layer, topology, x, engine)


def test_a_layer_that_holds_its_model_is_not_compiled_anew_when_that_learns(topology: Topology) -> None:
    layer, engine = Flexible(), CompiledEngine(dialect="naive")
    model = nn.ModuleDict({"layer": layer, "norm": nn.PReLU()})
    layer.factors = [2.0, model]
    x = torch.randn(50, 6, dtype=torch.float64)
    assert_as_written(layer, topology, x, engine)
    with torch.no_grad():
        model["norm"].weight += 1
    assert_as_written(layer, topology, x, engine)
    assert len(engine.programs_of(layer)) == 1
    gone = weakref.ref(model)
    del layer, model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("change", ["a number", "a method"])
def test_a_class_that_changes_is_compiled_anew(change: str, topology: Topology) -> None:
    class Changing(Flexible):
        factor = 2.0

        def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
            return accum * self.factor

    layer, engine = Changing(), CompiledEngine(dialect="naive")
    x = torch.randn(50, 6, dtype=torch.float64)
    assert_as_written(layer, topology, x, engine)
    if change == "a number":
        Changing.factor = 7.0
    else:
        Changing.apply_vertex = lambda self, vertex, accum: accum - 1  # type: ignore[method-assign]
    assert_as_written(layer, topology, x, engine)


def test_hooks_of_all_modules_are_called(topology: Topology) -> None:
    layer, engine = Flexible(), CompiledEngine(dialect="naive")
    x = torch.randn(50, 6, dtype=torch.float64)
    assert_as_written(layer, topology, x, engine)

    def doubled(module: nn.Module, _inputs: object, out: Tensor) -> Tensor | None:
        return out * 2 if isinstance(module, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        assert_as_written(layer, topology, x, engine)
    finally:
        handle.remove()


def _reader_of(layer: Flexible) -> Callable[[], Any]:
    return lambda: layer.factors


def test_a_layer_that_holds_its_own_method_is_freed(topology: Topology) -> None:
    layer, engine = Flexible(), CompiledEngine()
    layer.own = layer.apply_edge  # type: ignore[assignment]
    layer.reads_itself = _reader_of(layer)  # type: ignore[assignment]
    assert_as_written(layer, topology, torch.randn(50, 6, dtype=torch.float64), engine)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None


class Remembering(Flexible):
    """A layer that appends to a list, and replaces a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def apply_edge(self, edge: Edge) -> Tensor:
        self.log.append(len(edge.src))
        return super().apply_edge(edge)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        self.count = self.count + 1
        return accum * self.count


def test_a_layer_with_side_effects_runs_as_written(topology: Topology) -> None:
    layer, engine = Remembering(), CompiledEngine()
    for _ in range(3):
        with using_engine(engine):
            layer(topology, torch.randn(50, 6, dtype=torch.float64))
    assert layer.log == [topology.num_edges] * 3
    assert layer.count == 3
    assert set(engine.programs_of(layer)) == {"it sets 'count', a buffer or parameter"}


def test_autocast_runs_a_layer_as_written(topology: Topology) -> None:
    layer, engine = Flexible().float(), CompiledEngine()
    x = torch.randn(50, 6)
    floats = topology.with_edge_data(weight=topology.edge_data["weight"].float())
    results = []
    for each in (engine, NaiveEngine()):
        with using_engine(each), torch.autocast("cpu", torch.bfloat16):
            results.append(layer(floats, x))
    assert torch.equal(*results)
    with using_engine(engine):
        single = layer(floats, x)
    assert single.dtype == torch.float32
    # Else the program that runs outside would pass for it.
    assert not torch.equal(single, results[0])


@pytest.mark.parametrize("same", [True, False], ids=["one layer", "a layer each"])
def test_several_threads_may_run_a_layer_for_the_first_time(same: bool, topology: Topology) -> None:
    torch.manual_seed(0)
    layer, engine = Flexible(), CompiledEngine()
    layers = [layer if same else copy.deepcopy(layer) for _ in range(6)]
    x = torch.randn(50, 6, dtype=torch.float64)
    results: list[Tensor] = []

    def run(own: SagaLayer) -> None:
        results.append(own(topology, x))

    with using_engine(engine):
        threads = [threading.Thread(target=copy_context().run, args=(run, own)) for own in layers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == len(layers)
    assert all(torch.equal(result, results[0]) for result in results)
    for own in layers:
        assert [type(program) for program in engine.programs_of(own)] == [LayerProgram]


def test_a_layer_may_run_while_another_thread_asks_for_a_program(topology: Topology) -> None:
    """A trace puts tensors without content in the parameters' place: no other thread may read these."""
    waits, inside, ran = threading.Event(), threading.Event(), threading.Event()

    class Waiting(Flexible):
        def apply_edge(self, edge: Edge) -> Tensor:
            if waits.is_set() and not isinstance(self.first.weight, nn.Parameter):
                inside.set()
                ran.wait(0.2)
            return super().apply_edge(edge)

    layer, engine, data = Waiting(), CompiledEngine(dialect="naive"), topology.edge_data["weight"]
    x = declare_constant(torch.randn(50, 6, dtype=torch.float64))
    expected = engine.run(layer, topology, {"": x}, {"": data})
    waits.set()
    with ThreadPoolExecutor(max_workers=1) as threads:
        answer = threads.submit(engine.why_not, layer, x.clone().requires_grad_(), data)
        assert inside.wait(60)
        found = engine.run(layer, topology, {"": x}, {"": data})
        ran.set()
        assert answer.result() == ""
    assert torch.equal(found, expected)


class Mean(SagaLayer):
    """Returns what was gathered."""

    accumulator = "mean"


def test_what_a_layer_returns_may_be_changed_in_place(topology: Topology) -> None:
    x, engine = torch.randn(50, 6), CompiledEngine()
    with using_engine(engine):
        first = Mean()(topology, x)
        layer = Mean()
        results = []
        for _ in range(3):
            out = layer(topology, x)
            results.append(out.clone())
            out.mul_(2)
    assert all(torch.equal(result, first) for result in results)
