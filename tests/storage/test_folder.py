"""A folder appears whole or not at all, and what dead imports left is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sagann.errors import DatasetError
from sagann.storage import folder as folder_module, open_graph, save_graph
from sagann.storage.folder import new_folder
from tests.forks import run_fresh
from tests.storage.conftest import assert_same_graph, make_graph


def write_and(path: Path, action: Callable[[], object]) -> None:
    with new_folder(path, overwrite=False) as folder:
        (folder / "manifest.json").write_text('{"format": "sagann-graph"}')
        action()


def test_failure_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_and(tmp_path / "g", lambda: 1 / 0)
    assert list(tmp_path.iterdir()) == []


def test_running_import_is_left_alone_and_dead_one_removed(tmp_path: Path) -> None:
    dead = tmp_path / ".g.partial-1-00000000"
    dead.mkdir()
    (dead / "indptr.npy").write_bytes(b"\0" * 10)
    other = tmp_path / ".h.partial-1-00000000"
    other.mkdir()

    def second_import() -> None:
        running = set(tmp_path.glob(".g.partial-*"))
        assert dead not in running
        assert len(running) == 1
        write_and(tmp_path / "g", lambda: None)
        assert set(tmp_path.glob(".g.partial-*")) == running
        (tmp_path / "g" / "manifest.json").unlink()

    write_and(tmp_path / "g", second_import)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".h.partial-1-00000000", "g"]


def test_place_taken_meanwhile_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="a dataset stands there already"):
        write_and(tmp_path / "g", lambda: save_graph(make_graph(), tmp_path / "g"))
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_of_a_link_the_dataset_is_replaced(tmp_path: Path) -> None:
    save_graph(make_graph(), tmp_path / "first")
    (tmp_path / "current").symlink_to("first")
    save_graph(make_graph(labels="multi"), tmp_path / "current", overwrite=True)
    assert (tmp_path / "current").is_symlink()
    assert_same_graph(open_graph(tmp_path / "first"), make_graph(labels="multi"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["current", "first"]


def test_a_link_to_nothing_leads_to_the_new_dataset(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("new")
    save_graph(make_graph(), tmp_path / "current")
    assert_same_graph(open_graph(tmp_path / "new"), make_graph())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["current", "new"]


def test_name_with_pattern_letters_does_not_match_others(tmp_path: Path) -> None:
    bystander = tmp_path / ".gx.partial-1-00000000"
    bystander.mkdir()
    save_graph(make_graph(), tmp_path / "g[x]")
    save_graph(make_graph(), tmp_path / "g?")
    save_graph(make_graph(), tmp_path / "*")
    assert bystander.exists()


@pytest.fixture
def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_exchange", lambda first, second: False)


@pytest.mark.usefixtures("without_exchange")
def test_replacing_works_without_the_exchange_call(tmp_path: Path) -> None:
    save_graph(make_graph(features="none"), tmp_path / "g")
    save_graph(make_graph(), tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


DIE_BETWEEN_THE_RENAMES = """
import os, sys
from sagann.storage import folder, save_graph
from tests.storage.conftest import make_graph

folder._exchange = lambda first, second: False
rename = os.rename

def die_after_the_old_one_stepped_aside(source, target):
    rename(source, target)
    if ".replaced-" in str(target):
        os._exit(0)

os.rename = die_after_the_old_one_stepped_aside
save_graph(make_graph(), sys.argv[1], overwrite=True)
sys.exit("it was not replaced by two renames")
"""


@pytest.mark.usefixtures("without_exchange")
def test_death_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    save_graph(make_graph(features="none"), tmp_path / "g")
    run_fresh(DIE_BETWEEN_THE_RENAMES, tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert_same_graph(open_graph(tmp_path / "g"), make_graph(features="none"))
    save_graph(make_graph(), tmp_path / "g", overwrite=True)
    assert_same_graph(open_graph(tmp_path / "g"), make_graph())
    assert [entry.name for entry in tmp_path.iterdir()] == ["g"]


def test_full_disk_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(DatasetError, match=r"disk is full: .*nothing was left behind"),
        new_folder(tmp_path / "g", overwrite=False),
    ):
        raise OSError(28, "No space left on device", str(tmp_path / "g" / "indices.npy"))
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_of_another_program_makes_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a site", "icons": []}')
    with pytest.raises(DatasetError, match=r"not a dataset of sagann: a folder without a manifest.json of sagann"):
        save_graph(make_graph(), tmp_path, overwrite=True)
    assert (tmp_path / "manifest.json").exists()
