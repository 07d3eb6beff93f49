from __future__ import annotations

import pytest

from sagann.errors import InputError
from sagann.train.run_folder import RunFolder


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
