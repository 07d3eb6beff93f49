"""Gathers of constant features are kept within a budget, and no longer than what they were gathered from."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.graph.feature_store import declare_constant
from sagann.kernels.edge import naive
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.in_memory.invariants import Invariants, Owner
from sagann.saga import NaiveEngine, SagaLayer, using_engine
from tests.compiler.layers import Layer
from tests.graphs import random_topology, rows, skewed
from tests.tolerances import assert_close


class Counted(SagaLayer):
    """GCN without weights; its gather is of constant features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2).double()

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linear(accum)


def passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every edge pass that runs from now on."""
    ran: list[Any] = []
    run = naive.run

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(function)
        return run(function, *args, **kwargs)

    monkeypatch.setattr(naive, "run", counted)
    return ran


def test_the_gather_of_constant_features_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, layer = random_topology(20, 90), Counted()
    ran, x = passes(monkeypatch), declare_constant(rows(topology))
    with using_engine(CompiledEngine(dialect="naive")) as engine:
        outs = [layer(topology, x) for _ in range(3)]
        outs[-1].sum().backward()
        assert len(ran) == 1
        assert torch.equal(outs[0], outs[2])
        held = engine.invariants.held_bytes
        x.mul_(2)
        assert not torch.equal(layer(topology, x), outs[0])
        assert len(ran) == 2
        # What was kept of the features before has gone.
        assert engine.invariants.held_bytes == held > 0
        layer(topology, declare_constant(x.clone()))
        assert len(ran) == 3
        del topology
        gc.collect()
        assert engine.invariants.held_bytes == 0


def test_only_declared_features_are_taken_for_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, layer = skewed(), Counted()
    ran, x = passes(monkeypatch), declare_constant(rows(topology))
    with using_engine(CompiledEngine(dialect="naive")) as engine:
        trained = layer(topology, x)
        with torch.no_grad():
            assert torch.equal(layer(topology, x), trained)
            assert len(ran) == 1
            hidden = x.clone()
            evaluated = layer(topology, hidden)
            assert any(note.kind == "commuted" for note in engine.program(layer, hidden).notes)
        assert torch.equal(layer(topology, hidden.clone().requires_grad_()), evaluated)


def test_programs_that_gather_the_same_keep_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, x = skewed(), declare_constant(rows(skewed()))
    layer = Layer(lambda m, e: e.src * e.data[:, None], lambda m, v, a: a * m.factor).double()
    topology = topology.with_edge_data(weight=topology.edge_data["weight"].double())
    ran = passes(monkeypatch)
    with using_engine(CompiledEngine(dialect="naive")) as engine:
        for factor in range(20):
            layer.factor = float(factor)
            for training in (True, False):
                layer.train(training)
                with using_engine(NaiveEngine()):
                    expected = layer(topology, x)
                assert_close(layer(topology, x), expected)
        assert len(ran) == 1
        assert engine.invariants.held_bytes == x.nbytes
        layer.edge_function = lambda m, e: e.src * 2 * e.data[:, None]
        assert_close(layer(topology, x), 2 * expected)
        assert len(ran) == 2


def test_a_gather_that_two_threads_keep_is_counted_once() -> None:
    both = threading.Barrier(2)

    def compute() -> Tensor:
        both.wait(10)
        return torch.ones(8, 4)

    kept, topology, x = Invariants(), skewed(), torch.ones(8, 4)
    owners = [Owner()]
    with ThreadPoolExecutor(max_workers=2) as threads:
        list(threads.map(lambda _: kept.get(owners[0], topology, {"": x}, {}, compute), range(2)))
    assert kept.held_bytes == 8 * 4 * 4
    owners.clear()
    gc.collect()
    assert kept.held_bytes == 0


def test_a_gather_of_parameters_is_not_kept() -> None:
    topology = skewed()
    layer = Layer(lambda m, e: e.src * m.v)
    x = rows(topology, dtype=torch.float32)
    with using_engine(CompiledEngine()):
        before = layer(topology, x)
        with torch.no_grad():
            layer.v.mul_(2)
        assert_close(layer(topology, x), 2 * before)


def test_inference_mode_leaves_nothing_that_training_could_trip_over() -> None:
    topology, layer = skewed(), Counted()
    x = rows(topology)
    with torch.inference_mode():
        inferred = layer(topology, x)
    trained = layer(topology, x)
    trained.sum().backward()
    # Only training shows that x is constant, and its gather comes before the linear map then.
    assert_close(trained, inferred)
