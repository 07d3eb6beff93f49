"""Training within a memory budget: the same numbers, nothing left behind."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sagann.errors import InputError, LayerError
from sagann.graph.feature_store import tensor_of
from sagann.nn import MaxPoolGCN, ModelConfig, build_model
from sagann.plan.residency import BudgetError
from sagann.runtime.blocks.spill import SpillError
from sagann.runtime.streaming.stream import stream
from sagann.runtime.team import SOLO, Team
from sagann.storage import open_graph, save_graph
from sagann.storage.mapped import MappedRows
from sagann.train import Contract, Predictor, TrainConfig, Trainer, TrainResult, load_run
from sagann.train.streamed import Streaming
from tests.plan.machines import ROUND
from tests.stores import ComputedRows
from tests.train.runs import CPU, Mixing, community_graph, seeded_model, trainer_of

TIGHT = "40kB"
MODEL = ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.0)


def trained(run_dir: Path | None = None, *, multi_label: bool = False, **options: object) -> TrainResult:
    config = TrainConfig(epochs=8, device="cpu", **options)  # type: ignore[arg-type]
    return Trainer(MODEL, community_graph(600, multi_label=multi_label), config, run_dir=run_dir).fit()


def test_features_are_needed_and_embeddings_come_from_memory(tmp_path: Path) -> None:
    bare = ModelConfig(model="gcn", hidden=8, encoder="embedding")
    trainer = trainer_of(bare, replace(community_graph(600), features=None), epochs=1, memory=TIGHT)
    with pytest.raises(InputError, match="needs features"):
        trainer.fit()
    trainer = trainer_of(MODEL, community_graph(600), epochs=1, memory=TIGHT)
    trainer.fit()
    assert trainer.embed().shape == (600, 16)


def test_a_model_with_a_batch_norm_can_be_evaluated_within_a_budget(tmp_path: Path) -> None:
    graph = community_graph(600)
    trainer = trainer_of(graph=graph, epochs=3, run_dir=tmp_path / "run")
    expected = trainer.fit().metrics["test"]
    predictor = load_run(tmp_path / "run", model=seeded_model(), memory=TIGHT)
    prepared = predictor.prepare(graph)
    assert predictor.evaluate(prepared)["test"] == pytest.approx(expected, rel=1e-5)
    streamed = predictor.runner(prepared).streamed()
    assert streamed.bounds[1] < 600
    predictor.model.eval()
    with pytest.raises(InputError, match="to be evaluated only"):
        streamed(prepared.graph.features)
    predictor.release()


def test_what_cannot_be_streamed_says_so(tmp_path: Path) -> None:
    graph = community_graph(600)
    with pytest.raises(BudgetError, match=r"at least .* bytes.* are needed"):
        trained(memory="100B")
    with pytest.raises(LayerError, match=r"operator mean mixes them.*use a torch\.nn\.BatchNorm1d"):
        trainer_of(seeded_model(Mixing), graph, epochs=1, memory=TIGHT).fit()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="spill folder cannot be used: Not a directory"):
        trained(memory=TIGHT, spill=str(tmp_path / "file"))
    with pytest.raises(InputError, match="needs features"):
        stream(MaxPoolGCN(8, 3), replace(graph, features=None), budget_bytes=1 << 20)


def test_a_disk_without_room_for_an_evaluation_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = [0]
    monkeypatch.setattr("sagann.train.streamed.free_disk_bytes", lambda folder: free_bytes[0])
    trainer = trainer_of(MODEL, community_graph(600), epochs=1, memory=TIGHT)
    # The result is 600 rows of three numbers.
    with pytest.raises(
        SpillError, match=r"0 bytes are free, .* are needed; the results of an evaluation are 7\.0 KiB"
    ) as caught:
        trainer.fit()
    found = re.search(r"(\d+) bytes\) are needed", caught.value.message)
    free_bytes[0] = int(found[1])
    assert trainer.fit().epochs == 1


def test_workers_on_one_disk_need_room_for_all_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Together(Team):
        """Three workers with the same blocks, of which one lies on another machine."""

        def texts(self, text: str, doing: str, *, timeout_s: float | None = None) -> list[str]:
            disk, needed_bytes, free_bytes, result_bytes = json.loads(text)
            others = (
                [disk, needed_bytes + 1, free_bytes - 1, result_bytes],
                ["another disk", 10 * needed_bytes, 0, result_bytes],
            )
            return [text, *map(json.dumps, others)]

    graph = community_graph(600)
    streaming = Streaming.of(TrainConfig(memory=TIGHT), tmp_path, device=CPU)
    model = build_model(MODEL, graph)
    predictor = Predictor(model, Contract.of(graph), device=CPU, streaming=streaming)
    prepared = predictor.prepare(graph)
    runner = predictor.runner(prepared)
    free_bytes = [0]
    monkeypatch.setattr("sagann.train.streamed.free_disk_bytes", lambda folder: free_bytes[0])

    def needed_bytes(team: Team) -> int:
        """The bytes that are asked for, and with which there is room."""
        runner.team, free_bytes[0] = team, 1
        with pytest.raises(SpillError) as caught:
            runner.try_out()
        found = re.search(r"\((\d+) bytes\) are needed", caught.value.message)
        is_shared = team is not SOLO
        assert ("by the 2 workers on this disk" in caught.value.message) == is_shared
        # The other worker has found one byte less.
        free_bytes[0] = int(found[1]) + is_shared
        runner.try_out()
        return int(found[1])

    alone = needed_bytes(SOLO)
    assert needed_bytes(Together()) == 2 * alone + 1
    # A worker computes the rows of its part, and gathers those of all vertices. A row of the result has three numbers.
    runner.prepared = replace(
        prepared,
        part=SimpleNamespace(vertices=slice(0, 400), topology=graph.topology, features=prepared.graph.features),  # type: ignore[arg-type]
    )
    assert needed_bytes(SOLO) == alone + (400 + 600 - 600) * 12
    predictor.release()


def test_beside_a_device_blocks_stay_in_memory_unless_a_folder_is_named(tmp_path: Path) -> None:
    config = TrainConfig(memory="1GiB")
    cuda = torch.device("cuda", 0)
    beside = Streaming.of(config, tmp_path, device=cuda)
    assert beside.spill is None
    # The budget of a device is that of its own memory, which holds no hot tier: evaluations have all of it.
    sampled = Streaming.of(replace(config, sample=(5, 5)), None, device=cuda, trains=False)
    assert (sampled.memory_bytes, sampled.is_half) == (1 << 30, False)
    named = Streaming.of(replace(config, spill=str(tmp_path)), tmp_path / "run", device=cuda)
    assert named.spill == tmp_path


def test_a_dataset_is_trained_on_without_being_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[slice] = []
    rows_of = MappedRows.slice

    def recorded(self: MappedRows, start: int, stop: int) -> torch.Tensor:
        read.append(slice(start, stop))
        return rows_of(self, start, stop)

    monkeypatch.setattr(MappedRows, "slice", recorded)
    graph = community_graph(600)
    save_graph(graph, tmp_path / "graph")
    config = TrainConfig(epochs=2, device="cpu", memory=TIGHT, spill=str(tmp_path / "spill"))
    trainer = Trainer(MODEL, open_graph(tmp_path / "graph"), config)
    found = trainer.fit()
    expected = trainer_of(MODEL, graph, epochs=2).fit()
    assert [record.loss for record in found.history] == pytest.approx(
        [record.loss for record in expected.history], rel=1e-4
    )
    assert found.metrics["test"]["roc_auc"] == pytest.approx(expected.metrics["test"]["roc_auc"], abs=1e-3)
    # All rows, an interval at a time.
    assert {rows.start for rows in read} >= {0}
    assert max(rows.stop - rows.start for rows in read) < 600
    assert not (tmp_path / "spill").exists()


def test_a_feature_store_trains_as_the_tensor_of_its_rows(tmp_path: Path) -> None:
    store = ComputedRows(600, 8)
    graph = replace(community_graph(600), features=store)
    results = []
    for each, options in (
        (graph, {}),
        (graph.in_memory(), {}),
        (graph, {"memory": TIGHT}),
        (graph.in_memory(), {"memory": TIGHT}),
    ):
        trainer = trainer_of(MODEL, each, epochs=3, **options)
        results.append([record.loss for record in trainer.fit().history])
        if each is graph and options:
            assert trainer.prepared.graph.features is store
            assert trainer.predict(each).shape == (600,)
    assert results[0] == results[1]
    assert results[2] == results[3]
    assert results[0] == pytest.approx(results[2], rel=1e-4)
    # Of another type, rows are converted before.
    double = replace(graph, features=ComputedRows(600, 8, torch.float64))
    converted = trainer_of(MODEL, double, epochs=3, memory=TIGHT).fit()
    assert [record.loss for record in converted.history] == pytest.approx(results[2], rel=1e-5)
    save_graph(graph, tmp_path / "graph")
    assert torch.equal(open_graph(tmp_path / "graph").features, tensor_of(store))


def test_a_sampled_run_has_half_of_its_budget_for_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        trained(tmp_path, sample=(5, 5), batch_size=16, memory="300B")
    least = re.fullmatch(
        r"the memory budget cannot be met: an evaluation has half of it, 150 B, and needs at least (\d+) B "
        r"\(in graph 'communities'\)\. Raise the budget \(--memory, TrainConfig.memory\), .* with .*?(\d+) bytes\)?, evaluations are not many times slower\.",
        str(caught.value),
    )
    assert int(least[2]) >= 2 * int(least[1]) > 300
    with pytest.raises(BudgetError, match="a training step without batches ahead takes"):
        trained(tmp_path, sample=(5, 5), batch_size=16, memory=f"{least[2]}B")


def profiled(run_dir: Path) -> None:
    config = TrainConfig(epochs=2, device="cpu", memory="20kB", profile=True)
    Trainer(MODEL, community_graph(300), config, run_dir=run_dir).fit()


def test_the_last_epoch_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    # Probing the disk takes seconds.
    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", lambda folder, device: ROUND)
    profiled(tmp_path / "run")
    events = json.loads((tmp_path / "run" / "profile.json").read_text())["traceEvents"]
    spans = [[event["name"] for event in events if (event["ph"], event["pid"]) == ("X", pid)] for pid in (0, 1)]
    # Planned and measured: forward and backward, and no evaluation, which would emit the result.
    assert sorted(spans[0]) == sorted(spans[1])
    names = {name.partition(":")[0] for name in spans[1]}
    assert {"transform_loss 2", "gather_grad 1", "edges csr"} <= names
    assert "emit 2" not in names
    assert (tmp_path / "run" / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_that_cannot_be_timed_leaves_the_measured_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*given: object) -> None:
        raise InputError("no rates: none (in machine)", hint="Probe it.")

    monkeypatch.setattr("sagann.runtime.forecasting.probe.probe", refuse)
    monkeypatch.setattr("sagann.storage.picture.can_draw", lambda: False)
    profiled(tmp_path)
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0}
    assert "The planned epoch is not in profile.json: no rates" in caplog.text
    assert "profile.png is not drawn" in caplog.text
