from __future__ import annotations

import json

import pytest

from sagann.errors import CheckpointError, InputError
from sagann.train import EpochRecord
from sagann.train.run_folder import RunFolder


def record(epoch):
    metrics = {"val": {"accuracy": 0.1 * epoch}}
    return EpochRecord(epoch=epoch, loss=1 / epoch, epoch_s=0.5, lr=0.1, metrics=metrics)


def test_history_is_read_back_and_cut(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append(record(1))
    folder.append(record(2))
    size = folder.sync_history()
    folder.append(record(3))
    assert folder.read_history(2, size) == [record(1), record(2)]
    folder.cut_history(size)
    # A run that is continued within an epoch is saved again before it adds a line.
    assert folder.sync_history() == size
    folder.append(record(3))
    folder.close()
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


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


def test_links_under_temporary_names_are_removed_and_not_followed(tmp_path):
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.mkdir()
    (mine / "precious").touch()
    run.mkdir()
    for name in (".tmp-run.json", ".tmp-model.safetensors", ".tmp-removed-checkpoints"):
        (run / name).symlink_to(mine)
    with RunFolder(run).locked():
        assert [path.name for path in run.iterdir()] == [".lock"]
    assert (mine / "precious").exists()


@pytest.mark.parametrize("num_epochs", [0, 1, 3, 10**18])
def test_a_history_of_another_number_of_epochs_is_refused(tmp_path, num_epochs):
    folder = RunFolder(tmp_path)
    folder.append(record(1))
    folder.append(record(2))
    size = folder.sync_history()
    folder.close()
    with pytest.raises(CheckpointError, match=rf"2 epochs in {size} bytes, expected {num_epochs} epochs"):
        folder.read_history(num_epochs, size)
