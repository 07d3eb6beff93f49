"""`sagann evaluate`, `predict` and `embed` by several workers: what one process writes, from the first worker alone, whole or not at all."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.storage import load_graph
from sagann.train.run_folder import RunFolder
from tests.cli.conftest import Invoke
from tests.cli.test_launch import ENVIRONMENT, by_hand, ended
from tests.cli.test_plan_run import learned_state
from tests.cli.warm import Warm
from tests.train.runs import written_lines

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
BUDGET = ("--memory", "3MiB")
"What an exchange of two workers needs at least, and some blocks."


def rows_of(path: Path) -> tuple[list[list[str]], np.ndarray]:
    """The columns of a table of predictions without the last one, and the last one, which has probabilities."""
    with path.open() as file:
        rows = list(csv.reader(file))[1:]
    return [row[:-1] for row in rows], np.array([float(row[-1]) for row in rows])


def together(warm: Warm, size: int, *arguments: object) -> list[str]:
    """What each worker has written to stdout; all succeed."""
    outcomes = by_hand(warm, commands=[arguments] * size)
    assert [code for code, _, _ in outcomes] == [0] * size, outcomes
    return [out for _, out, _ in outcomes]


def launched(warm: Warm, *arguments: object) -> tuple[int, str, str]:
    """The outcome of a command that starts two workers."""
    [outcome] = ended([warm.start(*arguments, "--workers", 2, env=ENVIRONMENT)])
    return outcome


@pytest.mark.parametrize(
    ("size", "options"),
    [pytest.param(2, (), marks=pytest.mark.thorough), (3, ()), (2, BUDGET)],
    ids=["2", "3", "2 that stream"],
)
def test_workers_write_what_one_process_writes(
    trained: Path, tmp_path: Path, invoke: Invoke, warm: Warm, size: int, options: Sequence[str]
) -> None:
    alone, files = tmp_path / "alone", tmp_path / "files"
    alone.mkdir()
    files.mkdir()
    assert invoke("predict", "--run", trained, "--out", alone / "p.csv").code == 0
    assert invoke("embed", "--run", trained, "--out", alone / "e.npy").code == 0
    first, *others = together(warm, size, "predict", "--run", trained, "--out", files / "p.csv", *options)
    assert first == f"Predictions of 120 vertices written to {files / 'p.csv'}\n"
    first, *silent = together(warm, size, "embed", "--run", trained, "--out", files / "e.npy", *options)
    assert first == f"Embeddings of 120 vertices, 8 wide, written to {files / 'e.npy'}\n"
    (classes, probabilities), (expected, of_one) = rows_of(files / "p.csv"), rows_of(alone / "p.csv")
    assert classes == expected
    np.testing.assert_allclose(probabilities, of_one, rtol=1e-5)
    np.testing.assert_allclose(np.load(files / "e.npy"), np.load(alone / "e.npy"), rtol=1e-5, atol=1e-6)
    first, *quiet = together(warm, size, "evaluate", "--run", trained, *options)
    assert first == invoke("evaluate", "--run", trained).out
    assert [*others, *silent, *quiet] == [""] * 3 * (size - 1)
    assert sorted(path.name for path in files.iterdir()) == ["e.npy", "p.csv"]


def test_another_graph_is_cut_by_what_the_run_has_learned(
    trained: Path, tmp_path: Path, invoke: Invoke, warm: Warm, blocks: Path
) -> None:
    """Rows come in the order that the graph had before it was renumbered, whatever the cut."""
    folder, data = tmp_path / "run", tmp_path / "other"
    shutil.copytree(trained, folder)
    run_folder = RunFolder(folder)
    newest = run_folder.checkpoints.newest(on_damaged=pytest.fail)
    # The embedded graph taught the costs; another one is cut.
    state = {**newest, "source": {"balance": learned_state()}}
    with run_folder.locked():
        run_folder.checkpoints.write(state)
    assert invoke("data", "reorder", blocks, data, "--by", "metis", "--parts", 4).code == 0
    use = ("predict", "--run", folder, "--data", data)
    assert invoke(*use, "--out", tmp_path / "alone.csv").code == 0
    together(warm, 2, *use, "--out", tmp_path / "cost.csv", "--balance", "cost")
    assert rows_of(tmp_path / "cost.csv")[0] == rows_of(tmp_path / "alone.csv")[0]
    ended = by_hand(warm, commands=[(*use, "--out", tmp_path / "three.csv", "--balance", "cost")] * 3)
    text = "Not 3 workers were measured, but 2: each is taken to have speed 1."
    assert [(code, text in err) for code, _, err in ended] == [(0, True), (0, False), (0, False)]
    refused = invoke("predict", "--run", trained, "--out", tmp_path / "p.csv", "--workers", 2, "--balance", "cost")
    assert refused.code == 2
    assert "the run has learned no cost model" in refused.err


def test_the_launcher_starts_workers(
    trained: Path, tmp_path: Path, invoke: Invoke, warm: Warm, blocks: Path
) -> None:
    use = ("predict", trained, "--data", blocks, "--out")
    assert invoke(*use, tmp_path / "alone.csv").code == 0
    code, out, err = launched(warm, *use, tmp_path / "launched.csv")
    assert (code, err) == (0, "")
    assert (
        out == f"Predictions of {load_graph(blocks).num_vertices} vertices written to {tmp_path / 'launched.csv'}\n"
    )
    assert rows_of(tmp_path / "launched.csv")[0] == rows_of(tmp_path / "alone.csv")[0]


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that there are two CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


@pytest.mark.usefixtures("two_devices")
def test_what_devices_cannot_do_is_refused_before_workers_start(
    trained: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.cli.launch.launch_workers", lambda *_, **__: pytest.fail("workers were started"))
    ended = invoke("evaluate", "--run", trained, "--device", "cuda", "--workers", 3)
    assert ended.code == 2
    assert "PyTorch sees 2, and the machine has 3 workers" in ended.err


@pytest.mark.usefixtures("two_devices")
def test_workers_that_can_have_no_devices_start_on_processors(
    trained: Path, blocks: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sagann.cli.launch.launch_workers", lambda *_, **__: 0)
    options = ("--workers", 3)
    ended = invoke("evaluate", "--run", trained, *options)
    assert ended.code == 0, ended.err
    assert "The workers compute on processors" in ended.err
    assert invoke("train", "--data", blocks, "--out", tmp_path / "run", *options).code == 0


def test_links_are_learned_and_scored_together(invoke: Invoke, tmp_path: Path, blocks: Path, warm: Warm) -> None:
    model = ("--model", "sage", "--hidden", 8, "--task", "link-prediction")
    train = ("train", "--data", blocks, *model, "--epochs", 2)
    alone, files = tmp_path / "alone", tmp_path / "files"
    assert invoke(*train, "--device", "cpu", "--out", alone).code == 0
    together(warm, 2, *train, "--device", "cpu", "--out", files)
    losses = [[line["loss"] for line in written_lines(run)] for run in (alone, files)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("src,dst\n0,1\n5,3\n")
    predict = ("predict", "--run", alone, "--links", pairs, "--out")
    assert invoke(*predict, tmp_path / "one.csv").code == 0
    together(warm, 2, *predict, tmp_path / "two.csv")
    (ends, one), (same, two) = (rows_of(tmp_path / name) for name in ("one.csv", "two.csv"))
    assert ends == same
    np.testing.assert_allclose(one, two, rtol=1e-5)
