"""Where kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagann.cache_folder import cache_folder


@pytest.fixture(autouse=True)
def _nothing_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAGANN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def _without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


def test_the_stated_folder_goes_before_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
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


def test_a_folder_that_cannot_be_made_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path / "file"))
    assert cache_folder().is_dir()
    assert tmp_path not in cache_folder().parents


def test_the_temporary_folder_goes_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = (
        "import os; from sagann.cache_folder import cache_folder; folder = cache_folder(); print(folder, flush=True)\n"
        "if child := os.fork(): os.waitpid(child, 0); assert folder.exists()"
    )
    environment = dict(os.environ, SAGANN_CACHE=str(tmp_path / "file"))
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not Path(told.stdout.strip()).exists()
