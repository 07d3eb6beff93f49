"""Checkpoints: what is written and read back, and those that are written because epochs are long."""

from __future__ import annotations

import math
import shutil
from collections import Counter, OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import CheckpointError, InputError
from sagann.train import saver
from sagann.train.checkpoint import CheckpointFolder, Position
from sagann.train.run_folder import RunFolder
from sagann.train.session import TrainSession
from tests.train.runs import fit_until, trainer_of

pytestmark = pytest.mark.usefixtures("naive")


class Clock:
    """A clock that only training and checkpoints move on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def saved_at(
    monkeypatch: pytest.MonkeyPatch, work: str, work_s: float, cost_s: float, **options: Any
) -> list[Position]:
    """Where a run of two or more epochs is saved, by a clock that only a method of the session and checkpoints move on."""
    clock, saved = Clock(), []
    monkeypatch.setattr(saver, "time", clock)
    do, write = getattr(TrainSession, work), CheckpointFolder.write

    def timed(session: TrainSession, *given: Any, **named: Any) -> Any:
        clock.now_s += work_s
        return do(session, *given, **named)

    def timed_write(folder: CheckpointFolder, checkpoint: Any) -> Path:
        clock.now_s += cost_s
        saved.append(Position.of(checkpoint))
        return write(folder, checkpoint)

    monkeypatch.setattr(TrainSession, work, timed)
    monkeypatch.setattr(CheckpointFolder, "write", timed_write)
    trainer_of(checkpoint_every=5, **options).fit()
    return saved


@pytest.mark.parametrize(
    ("epoch_s", "cost_s", "expected"),
    [
        (0.1, 0.0, [5, 10]),
        # Two epochs are 4 s.
        (2.0, 0.0, [2, 4, 5, 7, 9, 10]),
        (60.0, 0.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        # A checkpoint costs 10 s: the next one comes after 200 s.
        (60.0, 10.0, [1, 5, 9, 10]),
    ],
)
def test_long_epochs_are_saved_ahead_of_time(
    epoch_s: float, cost_s: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_at(monkeypatch, "run_epoch", epoch_s, cost_s, run_dir=tmp_path, epochs=10)
    assert saved == [Position(epoch) for epoch in expected]


@pytest.mark.parametrize(
    ("batch_s", "cost_s", "expected"),
    [
        # Epochs of four batches are shorter than 4 s.
        (0.9, 0.0, [(1, 1), (2, 0)]),
        (2.0, 0.0, [(0, 2), (1, 0), (1, 2), (2, 0)]),
        (60.0, 0.0, [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]),
        # A checkpoint costs 5 s: the next one comes after 100 s. A run that ends is saved.
        (60.0, 5.0, [(0, 1), (0, 3), (1, 1), (1, 3), (2, 0)]),
    ],
)
def test_batches_are_saved_where_epochs_are_long(
    batch_s: float, cost_s: float, expected: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"run_dir": tmp_path, "epochs": 2, "sample": (4, 3), "batch_size": 8}
    assert saved_at(monkeypatch, "_step", batch_s, cost_s, **options) == [Position(*at) for at in expected]


def test_resume_needs_a_run_in_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"not a run folder: run\.json cannot be read"):
        trainer_of(run_dir=tmp_path / "typo").resume()


def test_resuming_with_other_rates_of_an_own_optimizer_is_refused(tmp_path):
    def trainer(lr):
        def optimizer(groups):
            return torch.optim.SGD(groups, lr=lr)

        return trainer_of(epochs=2, run_dir=tmp_path, optimizer=optimizer)

    trainer(0.5).fit()
    with pytest.raises(CheckpointError, match=r"started differently: param_groups\.0\.lr was 0\.5, is 0\.25"):
        trainer(0.25).fit(resume=True)


def test_a_run_that_lost_its_description_is_not_continued_nor_removed(tmp_path):
    trainer_of(run_dir=tmp_path, epochs=2).fit()
    (tmp_path / "run.json").unlink()
    with pytest.raises(CheckpointError, match=r"the run has lost its run.json: .*fit\(overwrite=True\)"):
        trainer_of(run_dir=tmp_path, epochs=3).fit(resume=True)
    with pytest.raises(InputError, match="the run folder holds a run"):
        trainer_of(run_dir=tmp_path, epochs=3).fit()
    assert (tmp_path / "checkpoints").exists()
    trainer_of(run_dir=tmp_path, epochs=1).fit(overwrite=True)


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_that_lost_its_checkpoints_is_not_started_anew(tmp_path, finished):
    trainer_of(run_dir=tmp_path, epochs=4, checkpoint_every=2).fit()
    shutil.rmtree(tmp_path / "checkpoints")
    if not finished:
        for name in ("metrics.json", "model.safetensors"):
            (tmp_path / name).unlink()
    message = r"the run has lost its checkpoints: 4 epochs were trained.*fit\(overwrite=True\)"
    with pytest.raises(CheckpointError, match=message):
        trainer_of(run_dir=tmp_path, epochs=4, checkpoint_every=2).fit(resume=True)
    assert (tmp_path / "metrics.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (0, r"the run is past its last epoch: epoch 2, epochs is 1 .*Set epochs to at least 2\."),
        (3, r"past its last epoch: batch 3 of epoch 2, epochs is 1 .*Set epochs to at least 2\."),
    ],
)
def test_a_run_past_its_last_epoch_is_not_continued(tmp_path, batch, message):
    options = {"sample": (4, 3), "batch_size": 8}
    fit_until(2, batch, run_dir=tmp_path, epochs=2, **options)
    with pytest.raises(CheckpointError, match=message):
        trainer_of(run_dir=tmp_path, epochs=1, **options).fit(resume=True)


def test_a_part_of_an_epoch_that_was_saved_is_work(tmp_path):
    assert fit_until(1, 2, run_dir=tmp_path, epochs=2, sample=(4, 3), batch_size=8).epochs == 0
    with pytest.raises(InputError, match="the run folder holds a run"):
        trainer_of(run_dir=tmp_path, epochs=2, sample=(4, 3), batch_size=8).fit()


def test_a_folder_is_locked_once(tmp_path):
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(InputError, match="the run folder is in use"),
        RunFolder(tmp_path).locked(),
    ):
        pass


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints", "events"])
def test_a_run_does_not_write_to_where_a_link_leads(tmp_path, name):
    mine, run = tmp_path / "mine", tmp_path / "run"
    run.mkdir()
    if name in ("checkpoints", "events"):
        (mine / "epoch-000001").mkdir(parents=True)
    else:
        mine.write_text("precious\n")
    (run / name).symlink_to(mine)
    with (
        pytest.raises(InputError, match=rf"has a link in it, .*: '{name}' leads to '.*mine'"),
        RunFolder(run).locked(),
    ):
        pass
    assert (mine / "epoch-000001").exists() if mine.is_dir() else mine.read_text() == "precious\n"


def test_links_under_temporary_names_are_not_followed(tmp_path):
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("precious")
    run.mkdir()
    for name in (".tmp-run.json", ".tmp-model.safetensors", ".tmp-metrics.json"):
        (run / name).symlink_to(mine)
    trainer_of(run_dir=run, epochs=1).fit()
    assert mine.read_text() == "precious"


def checkpoint(epoch=10, batch=0, **state):
    state = state or {"lr": 0.1, "best": None, "weights": {"w": torch.arange(4.0), "n": torch.tensor(3)}}
    return {"epoch": epoch, "batch": batch, **state}


def there_and_back(tmp_path, value):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(value=value))
    return folder.read(Position(10))["value"]


@pytest.mark.parametrize(
    "value",
    [
        -math.inf,
        [1, (2, [3, {4}])],
        {0: "zero", ("a", 1): {"x": 2**70}},
        Counter({5: 1, 3: 2}),
        OrderedDict(b=1, a=2),
    ],
)
def test_plain_values_and_their_types_come_back(tmp_path, value):
    back = there_and_back(tmp_path, value)
    assert back == value
    assert type(back) is type(value)


def test_tensors_keep_their_bits_and_leave_what_lies_behind_them(tmp_path):
    tensor = torch.tensor([[1.0, -0.0], [math.nan, math.inf]])
    back = there_and_back(tmp_path, [tensor.T, torch.nn.Parameter(torch.zeros(1000, 1000)[:1, :2])])
    assert torch.equal(back[0].view(torch.int32), tensor.T.contiguous().view(torch.int32))
    assert type(back[1]) is torch.Tensor
    assert (tmp_path / "epoch-000010.pt").stat().st_size < 10_000


def holds_itself():
    value = {}
    value["a"] = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"f": [1, print]}, r"a builtins\.builtin_function_or_method \(in value\.f\.1\)"),
        (object(), r"a builtins\.object \(in value\)"),
        (deque([1]), r"a collections\.deque \(in value\)"),
        (np.zeros(2), r"a numpy\.ndarray \(in value\)"),
        (holds_itself(), "containers that lie in each other too deeply"),
    ],
)
def test_what_is_no_plain_value_is_refused_by_name(tmp_path, value, named):
    with pytest.raises(CheckpointError, match=rf"training state cannot be saved: {named}"):
        there_and_back(tmp_path, value)
    assert not list(tmp_path.iterdir())


def test_a_class_is_not_made_even_if_others_allow_it(tmp_path):
    path = CheckpointFolder(tmp_path, keep=1).write(checkpoint())
    torch.save({"format": 2, "epoch": 10, "batch": 0, "value": deque([1])}, path)
    with (
        torch.serialization.safe_globals([deque]),
        pytest.raises(CheckpointError, match=r"checkpoint is damaged: .*collections\.deque"),
    ):
        CheckpointFolder(tmp_path, keep=1).read(Position(10))


def test_positions_within_an_epoch_lie_between_those_of_its_ends(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for epoch, batch in ((3, 0), (3, 9), (3, 10), (4, 0)):
        path = folder.write(checkpoint(epoch, batch))
        assert Position.of(folder.read(Position(epoch, batch))) == Position(epoch, batch)
        assert path.name == ("epoch-000003-batch-000009.pt" if batch == 9 else path.name)
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9)]
    # What lies behind the newest position counts as damaged.
    folder.write(checkpoint(3, 4))
    assert folder.positions() == [Position(4), Position(3, 10), Position(3, 9), Position(3, 4)]
    (tmp_path / "epoch-000003-batch-000009.pt").rename(tmp_path / "epoch-000003-batch-000011.pt")
    with pytest.raises(CheckpointError, match=r"it is of batch 9 of epoch 4, its name says batch 11 of epoch 4"):
        folder.read(Position(3, 11))


def test_one_that_goes_while_it_is_read_is_no_damage(tmp_path, monkeypatch):
    """A process that trains writes a newer one, and removes it."""
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    def go_on(path, *mode):
        if path.name == "epoch-000001.pt":
            folder.write(checkpoint(2))
        return opened(path, *mode)

    opened = Path.open
    monkeypatch.setattr(Path, "open", go_on)
    assert folder.newest(on_damaged=pytest.fail)["epoch"] == 2


def test_a_full_disk_gets_its_room_back(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.write(checkpoint(1))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="the run folder cannot be written: No space left on device"):
        folder.write(checkpoint(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-000001.pt"]


def test_another_format_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    torch.save({"format": 9}, tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: format 9, expected 4"):
        folder.read(Position(10))
    torch.save(torch.ones(2), tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: format None, expected 4"):
        folder.read(Position(10))
    torch.save({"format": 4}, tmp_path / "epoch-000010.pt")
    with pytest.raises(CheckpointError, match="checkpoint is damaged: KeyError: 'epoch'"):
        folder.read(Position(10))
