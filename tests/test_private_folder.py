"""Folders that other users may write to, on any level, and links that lead there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sagann import private_folder as module
from sagann.private_folder import UnsafeError, private_folder, require_private
from tests.other_user import OTHER, as_other, needs_root


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_missing_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert private_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    finally:
        os.umask(before)
    assert [_mode(tmp_path / "a"), _mode(tmp_path / "a" / "b")] == [0o700, 0o700]


def test_what_others_may_only_read_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    assert private_folder(tmp_path / "a") == tmp_path / "a"
    assert _mode(tmp_path / "a") == 0o755


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(UnsafeError, match=rf"other users may write to '{tmp_path}' \(mode {mode:04o}\)"):
        private_folder(tmp_path)


def test_above_only_the_sticky_bit_lets_others_write(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "own").mkdir(parents=True)
    above.chmod(0o777)
    with pytest.raises(UnsafeError, match=f"other users may write to '{above}'"):
        private_folder(above / "own")
    with pytest.raises(UnsafeError):
        private_folder(above / "new")
    assert not (above / "new").exists()
    above.chmod(0o1777)
    assert private_folder(above / "own") == above / "own"
    # The folder itself is found by another name.
    (above / "same").symlink_to(".")
    with pytest.raises(UnsafeError, match=f"other users may write to '{above}'"):
        private_folder(above / "same")


@needs_root
@pytest.mark.parametrize("whose", [".", "own", "own/inner"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, whose: str) -> None:
    (tmp_path / "own" / "inner").mkdir(parents=True)
    os.chown(tmp_path / whose, OTHER, OTHER)
    found = (tmp_path / whose).resolve()
    with pytest.raises(UnsafeError, match=rf"'{found}' belongs to another user \(id {OTHER}\)"):
        private_folder(tmp_path / "own" / "inner")


@needs_root
def test_an_ordinary_user_has_folders_of_its_own_and_of_root(open_folder: Path) -> None:
    own = open_folder / "own"
    own.mkdir()
    os.chown(own, OTHER, OTHER)
    call = "from pathlib import Path; from sagann.private_folder import private_folder as folder"
    assert as_other(call, f"print(folder(Path('{own}/kernels')))") == f"{own}/kernels\n"
    assert ((own / "kernels").stat().st_uid, _mode(own / "kernels")) == (OTHER, 0o700)
    assert as_other(call, f"print(folder(Path('{open_folder}')))") == f"{open_folder}\n"
    os.chown(own, OTHER + 1, OTHER + 1)
    told = as_other(call, f"try: folder(Path('{own}/kernels'))\nexcept OSError as error: print(error.strerror)")
    assert told == f"'{own}' belongs to another user (id {OTHER + 1})\n"


def test_links_of_this_user_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("absolute/inner/../inner")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("absolute/inner", "relative", "absolute/../relative"):
        assert private_folder(tmp_path / name) == tmp_path / "real" / "inner"
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        private_folder(tmp_path / "circle")
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UnsafeError, match=f"other users may write to '{tmp_path / 'real'}'"):
        private_folder(tmp_path / "relative")


@needs_root
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    """It leads to a folder that is safe, but that nobody has chosen."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.chown(tmp_path / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(UnsafeError, match=f"'{tmp_path / 'link'}' belongs to another user"):
        private_folder(tmp_path / "link")


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b").chmod(0o777)
    target: Callable[..., str | None] = module._target

    def exchanged(name: str, *given: object) -> str | None:
        found = target(name, *given)
        if name == "a":
            (tmp_path / "a").rename(tmp_path / "aside")
            (tmp_path / "a").symlink_to("b")
        return found

    monkeypatch.setattr(module, "_target", exchanged)
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "a")


def test_what_is_checked_is_what_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder above that is exchanged after it was opened changes nothing."""
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "b" / "inner").mkdir(parents=True)
    (tmp_path / "b" / "inner").chmod(0o777)
    opened: Callable[..., int] = module._open_or_make

    def exchanged(name: str, folder: int) -> int:
        handle = opened(name, folder)
        if name == "a":
            (tmp_path / "a").rename(tmp_path / "aside")
            (tmp_path / "b").rename(tmp_path / "a")
        return handle

    monkeypatch.setattr(module, "_open_or_make", exchanged)
    private_folder(tmp_path / "a" / "inner")
    monkeypatch.undo()
    with pytest.raises(UnsafeError):
        private_folder(tmp_path / "a" / "inner")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(NotADirectoryError):
            private_folder(path)


def test_files_that_others_may_have_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    require_private(file)
    file.write_text("")
    file.chmod(0o644)
    require_private(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(UnsafeError):
        require_private(tmp_path / "link")
    file.chmod(0o664)
    with pytest.raises(UnsafeError, match="other users may write"):
        require_private(file)


def test_no_handle_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    private_folder(tmp_path / "a" / "b")
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(UnsafeError):
        private_folder(tmp_path / "a" / "b")
    assert os.listdir("/proc/self/fd") == before
