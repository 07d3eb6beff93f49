"""Runs that are refused because of what their folder has, or has lost."""

from __future__ import annotations

import shutil

import pytest
import torch

from sagann.errors import CheckpointError, InputError
from sagann.train import TrainConfig, Trainer
from sagann.train.run_folder import RunFolder
from tests.train.runs import community_graph, fit_until, seeded_model

pytestmark = pytest.mark.usefixtures("naive")


def trainer_of(folder, **options):
    return Trainer(seeded_model(), community_graph(), TrainConfig(device="cpu", **options), run_dir=folder)


def test_resume_needs_a_run_in_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"not a run folder: run\.json cannot be read"):
        trainer_of(tmp_path / "typo").resume()


def test_resuming_with_other_rates_of_an_own_optimizer_is_refused(tmp_path):
    def trainer(lr):
        def optimizer(groups):
            return torch.optim.SGD(groups, lr=lr)

        config = TrainConfig(epochs=2, device="cpu")
        return Trainer(seeded_model(), community_graph(), config, run_dir=tmp_path, optimizer=optimizer)

    trainer(0.5).fit()
    with pytest.raises(CheckpointError, match=r"started differently: param_groups\.0\.lr was 0\.5, is 0\.25"):
        trainer(0.25).fit(resume=True)


def test_a_run_that_lost_its_description_is_not_continued_nor_removed(tmp_path):
    trainer_of(tmp_path, epochs=2).fit()
    (tmp_path / "run.json").unlink()
    with pytest.raises(CheckpointError, match=r"the run has lost its run.json: .*fit\(overwrite=True\)"):
        trainer_of(tmp_path, epochs=3).fit(resume=True)
    with pytest.raises(InputError, match="the run folder holds a run"):
        trainer_of(tmp_path, epochs=3).fit()
    assert (tmp_path / "checkpoints").exists()
    trainer_of(tmp_path, epochs=1).fit(overwrite=True)


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_that_lost_its_checkpoints_is_not_started_anew(tmp_path, finished):
    trainer_of(tmp_path, epochs=4, checkpoint_every=2).fit()
    shutil.rmtree(tmp_path / "checkpoints")
    if not finished:
        for name in ("metrics.json", "model.safetensors"):
            (tmp_path / name).unlink()
    message = r"the run has lost its checkpoints: 4 epochs were trained.*fit\(overwrite=True\)"
    with pytest.raises(CheckpointError, match=message):
        trainer_of(tmp_path, epochs=4, checkpoint_every=2).fit(resume=True)
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
        trainer_of(tmp_path, epochs=1, **options).fit(resume=True)


def test_a_part_of_an_epoch_that_was_saved_is_work(tmp_path):
    assert fit_until(1, 2, run_dir=tmp_path, epochs=2, sample=(4, 3), batch_size=8).epochs == 0
    with pytest.raises(InputError, match="the run folder holds a run"):
        trainer_of(tmp_path, epochs=2, sample=(4, 3), batch_size=8).fit()


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
    for name in (".tmp-run.json", ".tmp-model.safetensors"):
        (run / name).symlink_to(mine)
    with RunFolder(run).locked():
        assert [path.name for path in run.iterdir()] == [".lock"]
    assert (mine / "precious").exists()
