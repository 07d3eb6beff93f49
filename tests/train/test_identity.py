"""Workers compare what they begin with; workers are threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from sagann.errors import InputError
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.workers import Workers
from sagann.saga.engine import using_engine
from sagann.train import Contract, Predictor, TrainConfig, identity
from sagann.train.identity import require_agreement, require_same_run
from sagann.train.losses import Loss
from tests.runtime.workers.threads import in_threads
from tests.train.runs import CPU, community_graph

pytestmark = pytest.mark.usefixtures("naive")

CONFIG = TrainConfig(epochs=3, device="cpu")


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(ModelConfig(hidden=8), community_graph())


def agree(
    *starts: tuple[TrainConfig, Graph, nn.Module], losses: tuple[Loss | None, ...] = (None,) * 3
) -> list[str]:
    """What each worker is told; nothing where they agree."""

    def work(workers: Workers) -> str:
        try:
            config, graph, model = starts[workers.rank]
            predictor = Predictor(model, Contract.of(graph), device=CPU, loss=losses[workers.rank])
            require_agreement(workers, config, graph, predictor, ModelConfig(hidden=8))
        except InputError as error:
            return str(error)
        return ""

    return in_threads(work, len(starts))


def test_an_engine_that_keeps_nothing_is_another_engine() -> None:
    def work(workers: Workers) -> None:
        refused = pytest.raises(
            InputError, match=r"the workers disagree: engine\.lean is False at worker 0, and True"
        )
        # An engine belongs to a thread.
        with using_engine(CompiledEngine(lean=workers.rank == 1)), refused:
            require_same_run(workers, resume=False)

    in_threads(work, 2)


def test_lbfgs_wants_workers_of_equally_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.local()
    monkeypatch.setattr(identity, "versions", lambda: {"threads": threads.count})
    graph, model = community_graph(), model_of()

    def work(workers: Workers, config: TrainConfig) -> str:
        threads.count = 1 + workers.rank
        try:
            require_agreement(workers, config, graph, Predictor(model, Contract.of(graph), device=CPU), None)
        except InputError as error:
            return str(error)
        return ""

    assert in_threads(partial(work, config=CONFIG), 2) == ["", ""]
    said = in_threads(partial(work, config=replace(CONFIG, optimizer="LBFGS", weight_decay=0.0)), 2)
    assert all("versions.threads is 1 at worker 0, and 2 at worker 1" in text for text in said)


def test_a_difference_is_named_with_both_values() -> None:
    graph, model = community_graph(), model_of()
    other = replace(graph, labels=(graph.labels + 1) % 3)
    start = (CONFIG, graph, model)
    cases = {
        "train.lr is 0.01 at worker 0, and 0.02 at worker 2": (replace(CONFIG, lr=0.02), graph, model),
        "train.seed is 0 at worker 0, and 1 at worker 2": (replace(CONFIG, seed=1), graph, model),
        "graph.labels is ": (CONFIG, other, model),
        "model.weights.layers.0.linear.weight is ": (CONFIG, graph, model_of(1)),
    }
    for text, different in cases.items():
        for rank, said in enumerate(agree(start, start, different)):
            assert f"the workers disagree: {text}" in said
            assert f"(in worker {rank} of 3). Start every worker with the same versions" in said
