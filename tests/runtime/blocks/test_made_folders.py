"""Made folders: the last one that leaves removes them, whoever made them, and nothing of anybody else's goes."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sagann.runtime.blocks import made_folders
from sagann.runtime.blocks.made_folders import enter, leave
from tests.other_user import OTHER, needs_root

MARK = ".sagann-made"


def made(folder: Path) -> Path:
    """Something of one's own."""
    return Path(tempfile.mkdtemp(prefix="ours-", dir=folder))


def is_ours(name: str) -> bool:
    return name.startswith("ours-")


def go(own: Path) -> None:
    own.rmdir()
    leave(own.parent, is_ours)


def below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_last_one_removes_what_any_of_them_made(order: tuple[int, ...], tmp_path: Path) -> None:
    owns = [enter(tmp_path / "a" / name, made) for name in ("s", "s/rank0", "s/rank1")]
    for number in order[:-1]:
        go(owns[number])
        assert (tmp_path / "a").is_dir()
    go(owns[order[-1]])
    assert below(tmp_path) == []


def test_a_folder_that_was_there_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    own = enter(tmp_path / "there" / "made", made)
    assert MARK not in os.listdir(tmp_path / "there")
    go(own)
    assert below(tmp_path) == ["there"]


def test_what_a_killed_process_made_is_removed_by_the_next(tmp_path: Path) -> None:
    enter(tmp_path / "a" / "b", made).rmdir()
    assert below(tmp_path) == ["a", f"a/{MARK}", "a/b", f"a/b/{MARK}"]
    go(enter(tmp_path / "a" / "b", made))
    assert below(tmp_path) == []


def test_a_folder_that_somebody_else_uses_is_theirs_from_then_on(tmp_path: Path) -> None:
    own = enter(tmp_path / "a" / "b", made)
    (tmp_path / "a" / "mine").touch()
    go(own)
    assert below(tmp_path) == ["a", "a/mine"]


def test_somebody_who_comes_during_a_removal_removes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, came, rmdir = enter(tmp_path / "a", made), list[Path](), Path.rmdir
    first.rmdir()

    def late(folder: Path) -> None:
        if not came:
            # The mark is gone, so the folder seems to be somebody else's.
            came.append(enter(tmp_path / "a", made))
        rmdir(folder)

    with monkeypatch.context() as patches:
        patches.setattr(Path, "rmdir", late)
        leave(tmp_path / "a", is_ours)
    assert sorted(os.listdir(tmp_path / "a")) == sorted([MARK, came[0].name])
    go(came[0])
    assert below(tmp_path) == []


def test_folders_that_vanish_while_one_comes_are_made_again(tmp_path: Path) -> None:
    vanished = list[Path]()

    def make(folder: Path) -> Path:
        if not vanished:
            vanished.append(folder)
            folder.rmdir()
            folder.parent.rmdir()
        return made(folder)

    go(enter(tmp_path / "a" / "b", make))
    assert vanished == [tmp_path / "a" / "b"]
    assert below(tmp_path) == []


def test_a_folder_that_always_vanishes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_folders, "_ATTEMPTS", 3)
    with pytest.raises(FileNotFoundError):
        enter(tmp_path / "a", lambda folder: made(folder / "missing"))
    assert below(tmp_path) == []


def test_many_that_come_and_go_at_once_leave_nothing(tmp_path: Path) -> None:
    def come_and_go(number: int) -> None:
        for turn in range(60):
            own = enter(tmp_path / "a" / "b" / f"rank{(number + turn) % 3}", made)
            assert own.is_dir()
            go(own)

    with ThreadPoolExecutor(max_workers=6) as threads:
        for run in [threads.submit(come_and_go, number) for number in range(6)]:
            run.result()
    assert below(tmp_path) == []


def _link(mark: Path) -> None:
    (mark.parent.parent / "elsewhere").touch()
    mark.symlink_to(mark.parent.parent / "elsewhere")


def _of_other_user(mark: Path) -> None:
    mark.touch()
    os.chown(mark, OTHER, OTHER)


@pytest.mark.parametrize(
    "put",
    [_link, os.mkfifo, Path.mkdir, pytest.param(_of_other_user, marks=needs_root)],
    ids=lambda put: put.__name__,
)
def test_a_mark_that_is_no_file_of_this_user_is_none(put: object, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    put(tmp_path / "s" / MARK)  # type: ignore[operator]
    before = below(tmp_path)
    go(enter(tmp_path / "s", made))
    leave(tmp_path / "s", is_ours)
    assert below(tmp_path) == before
