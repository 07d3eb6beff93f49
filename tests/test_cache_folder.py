"""Where kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagann.cache_folder import cache_folder
from tests.other_user import OTHER, ROOT, as_other, needs_root


@pytest.fixture(autouse=True)
def _nothing_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAGANN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def _without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


def test_the_stated_folder_goes_before_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "home" / ".cache" / "sagann" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sagann" / "kernels"
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "stated"))
    assert cache_folder() == tmp_path / "stated" / "kernels"
    _without_home(monkeypatch)
    assert cache_folder() == tmp_path / "stated" / "kernels"
    assert cache_folder().is_dir()


def test_a_user_without_a_home_has_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_home(monkeypatch)
    assert cache_folder().is_dir()
    assert cache_folder() == cache_folder()


def test_a_folder_that_cannot_be_made_is_replaced_by_the_next_one_and_at_last_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=f"not kept in '{tmp_path}/file/kernels': Not a directory. .* Set SAGANN_CACHE"
    ):
        assert cache_folder() == tmp_path / "home" / ".cache" / "sagann" / "kernels"
    # The same is said once.
    assert cache_folder().is_dir()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=f"not kept in '{tmp_path}/file/.cache/sagann/kernels': Not a directory"):
        temporary = cache_folder()
    assert temporary.is_dir()
    assert tmp_path not in temporary.parents
    assert temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "inner", "wrong"),
    [
        ("SAGANN_CACHE", "kernels", "."),
        ("SAGANN_CACHE", "kernels", "kernels"),
        ("XDG_CACHE_HOME", "sagann/kernels", "."),
        ("XDG_CACHE_HOME", "sagann/kernels", "sagann"),
        ("XDG_CACHE_HOME", "sagann/kernels", "sagann/kernels"),
    ],
)
def test_a_folder_that_others_may_write_to_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, inner: str, wrong: str
) -> None:
    told = tmp_path / "told"
    kernels, open_one = told / inner, told / wrong
    kernels.mkdir(parents=True)
    open_one.chmod(0o777)
    monkeypatch.setenv(name, str(told))
    message = rf"not kept in '{kernels}': other users may write to '{open_one}' \(mode 0777\)\. Another folder takes its place"
    with pytest.warns(UserWarning, match=message):
        assert cache_folder() == tmp_path / "home" / ".cache" / "sagann" / "kernels"


@needs_root
def test_a_folder_of_another_user_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of root with the $HOME of a user."""
    home, own = tmp_path / "home", tmp_path / "own"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    with pytest.warns(UserWarning, match=rf"'{home}' belongs to another user \(id {OTHER}\)"):
        assert tmp_path not in cache_folder().parents
    assert not any(home.iterdir())
    monkeypatch.setenv("SAGANN_CACHE", str(own))
    assert cache_folder() == own / "kernels"


@needs_root
def test_an_ordinary_user_that_may_not_write_to_the_folder_has_another_one(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    (open_folder / "kernels").mkdir()
    code = f"os.environ |= {{'SAGANN_CACHE': '{open_folder}', 'HOME': '{home}'}}\nprint(cache_folder())"
    before = "import warnings; from sagann.cache_folder import cache_folder; warnings.simplefilter('ignore')"
    assert as_other(before, code) == f"{home}/.cache/sagann/kernels\n"


@pytest.mark.parametrize("end", ["", "\nfrom sagann.temporary import remove_all; remove_all(); os._exit(0)"])
def test_the_temporary_folder_goes_with_its_process(tmp_path: Path, end: str) -> None:
    (tmp_path / "file").write_text("")
    code = (
        "import os; from sagann.cache_folder import cache_folder; folder = cache_folder(); print(folder, flush=True)\n"
        "if child := os.fork(): os.waitpid(child, 0); assert folder.exists()" + end
    )
    environment = dict(os.environ, SAGANN_CACHE=str(tmp_path / "file"), HOME=str(tmp_path / "file"))
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not Path(told.stdout.strip()).exists()
