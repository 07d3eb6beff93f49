"""The automatic budget: streamed where memory would not hold the run, and else as if there were no such thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import InputError
from sagann.free_space import Memory
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.streaming.stream import dense_bytes
from sagann.runtime.team import SOLO
from sagann.saga.engine import NaiveEngine, using_engine
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer, TrainResult, automatic
from sagann.train.automatic import MARGIN_BYTES, MARGIN_SHARE
from sagann.train.trainable import model_to_train
from tests.runtime.memory_driver import generated
from tests.train.runs import CPU, Heard, Mixing, community_graph, seeded_model, trainer_of

MODEL = ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.0)
KIB = 1 << 10
PLENTY = 1 << 50

Free = Callable[[int | None], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Have the system say that so much is free for a streamed epoch; None for not knowing it."""
    graph = community_graph(600)
    besides = MARGIN_BYTES + automatic._held_bytes(build_model(MODEL, graph).parameters(), graph)

    def say(num_bytes: int | None) -> None:
        available = None if num_bytes is None else int((num_bytes + besides) / (1 - MARGIN_SHARE)) + 2
        found = Memory(total_bytes=None, available_bytes=available, limit_bytes=None, limit_used_bytes=None)
        monkeypatch.setattr(automatic, "memory", lambda: found)

    return say


def train(run_dir: Path | None = None, *, resume: bool = False, epochs: int = 2) -> tuple[TrainResult, list[str]]:
    heard = Heard()
    trainer = trainer_of(MODEL, community_graph(600), epochs=epochs, run_dir=run_dir, reporter=heard)
    return trainer.fit(resume=resume), heard.messages


def losses(result: TrainResult) -> list[float]:
    return [record.loss for record in result.history]


def test_where_memory_holds_the_run_nothing_changes(free: Free) -> None:
    found = []
    # In memory, the logits of an evaluation lie beside the epoch.
    for room in (PLENTY, 310 * KIB):
        free(room)
        result, messages = train()
        assert messages == []
        found.append((losses(result), result.metrics))
    assert found[0] == found[1]


def test_of_a_sampled_run_only_evaluations_must_fit(free: Free) -> None:
    graph = community_graph(600)
    model = build_model(MODEL, graph)
    evaluation, epoch = (dense_bytes(model, model.prepare(graph), trains=trains) for trains in (False, True))
    assert evaluation < 0.8 * epoch
    logits = 600 * 3 * 4
    for room, message in (((evaluation + epoch) // 2 + logits, ""), (evaluation, "An evaluation would take ")):
        free(room)
        heard = Heard()
        config = TrainConfig(epochs=2, device="cpu", sample=(4, 3), batch_size=50)
        result = Trainer(MODEL, graph, config, reporter=heard).fit()
        assert len(result.history) == 2
        assert "".join(heard.messages).startswith(message)
        assert bool(heard.messages) == bool(message)


def test_a_hot_tier_takes_its_part_of_the_free_memory(free: Free, tmp_path: Path) -> None:
    save_graph(community_graph(600), tmp_path)
    graph = load_graph(tmp_path)
    evaluation = dense_bytes(build_model(MODEL, graph), build_model(MODEL, graph).prepare(graph), trains=False)
    # Rows of 32 bytes, and tables of 4 bytes for each row of the graph and 8 for each hot one.
    free(evaluation + 600 * 3 * 4 + 600 * (32 + 4 + 8) // 2)
    for hot, is_streamed in (("0%", False), ("100%", True)):
        heard = Heard()
        config = TrainConfig(epochs=1, device="cpu", sample=(4, 3), batch_size=50, hot=hot, cache="static")
        Trainer(MODEL, graph, config, reporter=heard).fit()
        assert bool(heard.messages) == is_streamed


def test_a_run_that_does_not_fit_is_streamed_and_goes_on_as_it_began(free: Free, tmp_path: Path) -> None:
    free(120 * KIB)
    whole, (message,) = train(tmp_path / "whole")
    assert message.startswith("An epoch would take ")
    assert " MiB are free: the model is streamed within 1" in message
    assert message.endswith("--memory (TrainConfig.memory) sets another budget.")
    train(tmp_path / "cut", epochs=1)
    began = json.loads((tmp_path / "cut" / "run.json").read_text())["automatic_memory_bytes"]
    assert 100 * KIB < began <= 121 * KIB
    # There is plenty of room now, but other numbers would be the end of exact resumption.
    free(PLENTY)
    resumed, (message,) = train(tmp_path / "cut", resume=True)
    assert message.startswith("The run goes on as it began: streamed within 1")
    assert losses(resumed) == losses(whole)


def test_a_resumed_run_that_has_less_room_says_so(free: Free, tmp_path: Path) -> None:
    free(120 * KIB)
    train(tmp_path, epochs=1)
    free(60 * KIB)
    resumed, messages = train(tmp_path, resume=True)
    assert resumed.epochs == 2
    assert "its last bits may differ" in messages[-1]
    assert json.loads((tmp_path / "run.json").read_text())["automatic_memory_bytes"] < 100 * KIB


def test_a_run_that_does_not_even_fit_streamed_is_refused(free: Free) -> None:
    free(0)
    with pytest.raises(
        InputError, match=r"does not fit memory, not even streamed: an epoch needs at least \d+ B, \d B"
    ):
        train()


def test_what_cannot_be_streamed_runs_as_ever_and_says_why(free: Free) -> None:
    def run() -> tuple[list[float], list[str]]:
        heard = Heard()
        trainer = trainer_of(seeded_model(Mixing), community_graph(600), epochs=2, reporter=heard)
        return losses(trainer.fit()), heard.messages

    free(PLENTY)
    expected, messages = run()
    assert messages == []
    # It may well fit, as far as one knows.
    free(900 * KIB)
    assert run() == (expected, [])
    free(0)
    found, (message,) = run()
    assert found == expected
    assert "cannot be streamed: a model that is streamed, or divided among workers, must treat" in message
    assert message.endswith("use a torch.nn.BatchNorm1d.")


def test_other_engines_are_left_alone(free: Free) -> None:
    free(0)
    with using_engine(NaiveEngine()):
        assert train()[1] == []


def run_within(start: Sequence[str], *given: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*start, sys.executable, "-m", "tests.train.automatic_driver", *given],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.thorough
def test_features_that_do_not_fit_as_the_model_reads_them_are_converted_in_files(
    limited: Callable[[int], Sequence[str]], tmp_path: Path
) -> None:
    # Rows are wide, so that the graph of so large features is small.
    graph = generated(75_000, 75_000, num_features=512)
    save_graph(replace(graph, features=graph.features.half()), tmp_path / "data")
    # Less would be too little for a streamed epoch beside the program, more enough for all in memory.
    start = limited(750 << 20)
    assert run_within(start, "automatic", tmp_path / "run", tmp_path / "data").returncode == 0
    assert run_within(start, "prepared-in-memory", tmp_path / "other", tmp_path / "data").returncode != 0


@pytest.mark.slow
@pytest.mark.thorough
def test_a_process_lives_that_would_be_killed_in_memory(
    limited: Callable[[int], Sequence[str]], tmp_path: Path
) -> None:
    start = limited(720 << 20)
    streamed = run_within(start, "automatic", tmp_path / "streamed")
    assert streamed.returncode == 0, streamed.stderr
    assert "the model is streamed within" in streamed.stdout
    assert run_within(start, "in-memory", tmp_path / "in-memory").returncode == -9


def refusal(monkeypatch: pytest.MonkeyPatch, graph: Graph, free_bytes: int | None, **options: Any) -> str:
    """What refuses a model, whose file there is not, or a GCN with ``hidden``, where so much memory is free."""
    hidden, is_own = options.pop("hidden", 16), options.pop("is_own", False)
    found = Memory(total_bytes=None, available_bytes=free_bytes, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.free_space.memory", lambda: found)
    model, config = ModelConfig(model="mine.py:Net" if is_own else "gcn", hidden=hidden), TrainConfig(**options)
    try:
        model_to_train(model, graph, config, device=CPU, team=SOLO, tell=lambda text: None)
    except InputError as error:
        return str(error)
    return ""


def test_a_run_whose_outputs_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = community_graph(1000)
    refused = partial(refusal, monkeypatch)
    assert refused(graph, 1 << 20, hidden=1000) == ""
    wide = replace(graph, num_classes=1000)
    assert "for 1000 outputs on 1000 vertices" in (message := refused(wide, 1 << 20))
    assert "--memory, which streams the run" in message
    assert refused(wide, 1 << 20, memory="1MiB") == refused(wide, None) == ""
    assert "for 1000 outputs on 1000 vertices" in refused(wide, 1 << 20, is_own=True)
    # The weights of the output are in memory in any case.
    message = refused(replace(graph, num_classes=100_000), 1 << 20, memory="1MiB")
    assert "number them from 0 without gaps. Else use a smaller" in message
    # Nothing is allocated.
    assert "hidden 2000000000" in refused(graph, 1 << 30, hidden=2 * 10**9)


def test_a_streamed_run_holds_decisions_of_several_labels_a_split_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = torch.zeros(1000, 300, dtype=torch.uint8)
    several = replace(community_graph(1000), labels=labels, num_classes=300, splits={})
    half = replace(several, splits={"train": torch.arange(1000) < 500})
    found = [refusal(monkeypatch, each, 4 * 750 * 300, memory="1MiB") for each in (several, half)]
    assert [bool(each) for each in found] == [True, False]
