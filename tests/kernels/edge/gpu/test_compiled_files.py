"""Triton keeps compiled kernels, which later processes load as machine code, where no other user may write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagann.kernels.edge.gpu.compiled_files import keep_in_private_folder
from tests.other_user import ROOT

# Compiling needs no device.
PROGRAM = """
from tests.kernels.edge.gpu.compile_driver import compile_function
from tests.kernels.edge.functions import gated
compile_function("gated", gated(32))
"""


def compiled_below(folder: Path) -> list[str]:
    return sorted({path.suffix for path in folder.rglob("*") if path.suffix in (".cubin", ".ptx")})


@pytest.mark.slow
def test_kernels_are_compiled_into_the_private_folder(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    settings = {"TRITON_INTERPRET": "0", "SAGANN_CACHE": str(cache), "HOME": str(home)}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"} | settings
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    assert compiled_below(cache / "kernels") == [".cubin", ".ptx"]
    assert cache.stat().st_mode & 0o777 == 0o700
    assert compiled_below(home) == []


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sagann's own kernels."""
    monkeypatch.setenv("SAGANN_CACHE", str(tmp_path))
    # Restored after the test, whatever it becomes meanwhile.
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    return tmp_path / "kernels"


def test_without_a_stated_folder_it_is_that_of_other_kernels(own: Path) -> None:
    keep_in_private_folder()
    assert os.environ["TRITON_CACHE_DIR"] == str(own)


def test_a_private_folder_that_is_stated_stays(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = str(tmp_path / "stated")
    monkeypatch.setenv("TRITON_CACHE_DIR", stated)
    keep_in_private_folder()
    assert os.environ["TRITON_CACHE_DIR"] == stated


def test_a_stated_folder_that_others_may_write_to_is_not_used(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = tmp_path / "stated"
    stated.mkdir()
    stated.chmod(0o777)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(stated))
    with pytest.warns(
        UserWarning,
        match=r"Compiled code is not kept in '.*stated': other users may write to '.*stated' .mode 0777.",
    ):
        keep_in_private_folder()
    assert os.environ["TRITON_CACHE_DIR"] == str(own)
