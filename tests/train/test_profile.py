from __future__ import annotations

import json
from pathlib import Path

import pytest

from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer, profile
from tests.plan.machines import ROUND
from tests.train.runs import community_graph


def profiled(run_dir: Path) -> None:
    model = ModelConfig(model="gcn", layers=2, hidden=16, dropout=0.0)
    config = TrainConfig(epochs=2, device="cpu", memory="20kB", profile=True)
    Trainer(model, community_graph(300), config, run_dir=run_dir).fit()


def test_the_last_epoch_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    # Probing the disk takes seconds.
    monkeypatch.setattr(profile, "probe", lambda folder, device: ROUND)
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

    monkeypatch.setattr(profile, "probe", refuse)
    monkeypatch.setattr(profile, "can_draw", lambda: False)
    profiled(tmp_path)
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0}
    assert "The planned epoch is not in profile.json: no rates" in caplog.text
    assert "profile.png is not drawn" in caplog.text
