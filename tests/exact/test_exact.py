"""Every way to train gives the numbers of the naive engine in memory, in float64: losses, learned weights, probabilities, embeddings.

The naive engine runs a layer's own functions with PyTorch's scatter and gather, and its Trainer's numbers are those of a plain loop.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import NaiveEngine, using_engine
from tests.exact.cases import (
    BATCHES,
    CLASSES,
    GRAPHS,
    MODELS,
    MODES,
    Case,
    Numbers,
    assert_equal,
    config_of,
    graph_of,
    numbers_of,
    numbers_of_batches,
    why_not,
)
from tests.exact.worker_driver import SIZES, cases
from tests.runtime.device.several import ring, simulate_devices
from tests.runtime.workers.processes import run_driver

_SAMPLED = {"sample": (-1, -1), "batch_size": 1000}
WAYS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "streamed": {"memory": "8KiB"},
    "streamed, two devices": {"memory": "8KiB", "device": "cuda:0,cuda:1"},
    "sampled": _SAMPLED,
    "sampled, hot tier": {**_SAMPLED, "hot": "30%", "batches_ahead": 2},
}
"The options of each way."


class Reference(NaiveEngine):
    """The naive engine, with sparse features where other engines have them: dropout is drawn for each non-zero there."""

    def maps_features(self, *given: Any) -> bool:
        return _OTHER.maps_features(*given)


_OTHER = CompiledEngine()


@cache
def expected(model: str, graph: str, mode: str) -> Numbers:
    with using_engine(Reference()):
        return numbers_of(model, graph, mode)


@pytest.mark.cover(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_way_gives_the_numbers_of_the_naive_engine(
    way: str, model: str, graph: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_devices(monkeypatch, lambda count: ring(count, count))
    if (reason := why_not(Case(way, model, graph, mode))) is not None:
        pytest.skip(reason)
    given = {**WAYS[way], "spill": str(tmp_path)} if "memory" in WAYS[way] else WAYS[way]
    assert_equal(numbers_of(model, graph, mode, **given), expected(model, graph, mode))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.cover(2)
@pytest.mark.parametrize("every", [len(GRAPHS), pytest.param(3, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("way", SIZES)
def test_workers_give_the_numbers_of_the_naive_engine(tmp_path: Path, way: str, every: int) -> None:
    run_driver("worker_driver", tmp_path, way, str(every), package="tests.exact")
    found = torch.load(tmp_path / f"{way}.pt", weights_only=False)
    assert list(found) == cases(way, every)
    for case, numbers in found.items():
        assert_equal(numbers, expected(case.model, case.graph, case.mode))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.thorough)])
def test_workers_give_the_numbers_of_one_process_in_batches(tmp_path: Path, size: int) -> None:
    run_driver("worker_driver", tmp_path, "batches", str(size), package="tests.exact")
    found = torch.load(tmp_path / "batches.pt", weights_only=False)
    assert list(found) == list(BATCHES)
    for name, (numbers, again) in found.items():
        assert_equal(numbers, numbers_of_batches(name))
        for (_, mine, _), (_, theirs, _) in zip(numbers.named(), again.named(), strict=True):
            assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("model", MODELS)
def test_the_naive_trainer_is_a_plain_loop(model: str) -> None:
    graph = graph_of("skewed")
    torch.manual_seed(5)
    module = MODELS[model](graph, 0.0).double()
    if "PyG" in model:
        from sagann.interop import from_pyg_model

        module = from_pyg_model(module, graph)
    config, train = config_of(), graph.splits["train"]
    optimizer = torch.optim.SGD(module.parameters(), lr=config.lr)
    losses = []
    with using_engine(NaiveEngine()):
        prepared = module.prepare(graph)
        for _ in range(config.epochs):
            module.train()
            optimizer.zero_grad()
            rows = module(prepared.hops(module.num_hops), prepared.features)
            loss = F.cross_entropy(rows[train], graph.labels[train])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        module.eval()
        with torch.no_grad():
            rows = module(prepared.hops(module.num_hops), prepared.features)
    right = expected(model, "skewed", "without dropout")
    assert rows.shape[1] == CLASSES
    torch.testing.assert_close(right.losses, torch.stack(losses), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(right.probabilities, rows.softmax(1), rtol=1e-11, atol=1e-11)
