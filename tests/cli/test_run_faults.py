"""Folders that the user may not read or write, and disks that fill up: one message, and the run goes on afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Outcome
from tests.cli.test_process import run as in_process
from tests.forks import with_files_of
from tests.other_user import OTHER, ROOT, needs_root
from tests.shared import SharedFolder

EPOCHS = 40


def check_refused(ended: Outcome, path: Path) -> None:
    """One message that names the path, and a hint."""
    assert ended.code == 2, ended.err
    lines = [line for line in ended.err.splitlines() if line.startswith(("Error:", "  hint:"))]
    assert len(lines) == 2, ended.err
    assert str(path) in lines[0]
    assert "Traceback" not in ended.err
    assert "a fault of sagann" not in ended.err


@contextmanager
def files_of_root(blocks: Path, trained: Path) -> Iterator[Path]:
    """Files of root, some of which other users may not read; only ``home`` is the other user's."""
    folder = Path(tempfile.mkdtemp(prefix="sagann-test-"))
    shutil.copytree(blocks, folder / "data")
    for name in ("secret", "damaged"):
        shutil.copytree(blocks, folder / name)
    for name in ("run", "no weights"):
        shutil.copytree(trained, folder / name)
    (folder / "empty").mkdir()
    (folder / "home").mkdir()
    os.chown(folder / "home", OTHER, OTHER)
    (folder / "model.py").write_text("raise ValueError('it was read')\n")
    (folder / "run.toml").write_text('[data]\ndata = "demo"\n')
    for path in folder.rglob("*"):
        if path.name != "home":
            path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o755)
    (folder / "secret").chmod(0o700)
    for path in ("model.py", "run.toml", "no weights/model.safetensors"):
        (folder / path).chmod(0o600)
    for path in (folder / "damaged").glob("*.npy"):
        path.chmod(0o600)
    for name, source in {"own data": blocks, "own run": trained, "own home": folder / "empty"}.items():
        shutil.copytree(source, folder / name)
        make_read_only(folder / name)
    yield folder
    shutil.rmtree(folder)


def make_read_only(folder: Path) -> None:
    """Give a folder to the other user, with all in it, and leave nobody the right to write."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
        os.chown(path, OTHER, OTHER)


REFUSED = {
    "a run in a folder of root": ("train --data {}/data --out {}/new", "new"),
    "to resume an own run that is read-only": ("train --data {}/data --out {}/own+run --resume --epochs 40", "own run"),
    "a hidden dataset": ("train --data {}/secret --out {}/home/a", "secret"),
    "a dataset with hidden arrays": ("train --data {}/damaged --out {}/home/b", "damaged"),
    "a hidden model": ("train --data {}/data --model {}/model.py:Net --out {}/home/d", "model.py"),
    "hidden settings": ("train --config {}/run.toml --out {}/home/e", "run.toml"),
    "a spill folder of root": ("train --data {}/data --memory 14kB --spill {}/empty --out {}/home/f", "empty"),
    "hidden weights": ("evaluate --run {}/no+weights", "no weights/model.safetensors"),
    "predictions in a folder of root": ("predict --run {}/run --data {}/data --out {}/p.csv", "p.csv"),
    "a dataset in a folder of root": ("data generate sbm {}/generated --vertices 50 --classes 2", "."),
}  # fmt: skip
"Commands, where + is a space within a name, and the path that their messages name."

READ = {
    "predictions of an own run that is read-only": "predict --run {}/own+run --data {}/own+data --out {}/home/p.csv"
}
"Commands that write nothing where nobody may."


@pytest.fixture(scope="module")
def ended(blocks: Path, trained: Path, shared_folder: SharedFolder) -> dict[str, tuple[Outcome, Path]]:
    """How each of the commands ends for the other user, whose home is read-only, and the folder of the files."""
    commands = {name: command for name, (command, _) in REFUSED.items()} | READ

    def run(folder: Path) -> None:
        with files_of_root(blocks, trained) as place:
            words = [
                [part.replace("{}", str(place)).replace("+", " ") for part in command.split()]
                for command in commands.values()
            ]
            command = [sys.executable, "-m", "tests.other_user", str(place / "own home"), json.dumps(words)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
            assert done.returncode == 0, done.stderr
            (folder / "ended.json").write_text(json.dumps([str(place), *json.loads(done.stdout)]))

    place, *found = json.loads((shared_folder("refused", run) / "ended.json").read_text())
    return {name: (Outcome(**each), Path(place)) for name, each in zip(commands, found, strict=True)}


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_user_may_not_read_or_write_is_said(ended: dict[str, tuple[Outcome, Path]], name: str) -> None:
    outcome, place = ended[name]
    assert outcome.code == 2
    assert outcome.out == ""
    assert [line.startswith("Error: ") for line in outcome.err.splitlines()].count(True) == 1
    assert str(place / REFUSED[name][1]) in outcome.err
    for word in ("Traceback", "a fault of sagann", "it was read"):
        assert word not in outcome.err


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_where_nothing_is_written_reading_is_enough(ended: dict[str, tuple[Outcome, Path]], name: str) -> None:
    outcome, _ = ended[name]
    assert outcome.code == 0, outcome.err


def training(blocks: Path, out: Path, epochs: int = EPOCHS) -> list[str]:
    options = (
        "--hidden",
        512,
        "--dropout",
        0.3,
        "--epochs",
        epochs,
        "--checkpoint-every",
        1,
        "--keep-checkpoints",
        1000,
    )
    return [*map(str, ("train", "--data", blocks, *options, "--out", out))]


@pytest.fixture(scope="module")
def whole(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run that nothing happens to."""
    from sagann.cli.main import main

    path = tmp_path_factory.mktemp("whole") / "run"
    assert main([*training(blocks, path), "--quiet"]) == 0
    return (path / "model.safetensors").read_bytes()


def checkpoints(run: Path) -> dict[str, bytes]:
    """Content of every checkpoint that is whole."""
    return {path.name: path.read_bytes() for path in (run / "checkpoints").glob("epoch-*")}


def test_a_disk_that_is_full_of_checkpoints(invoke: Invoke, blocks: Path, small_disk: Path, whole: bytes) -> None:
    run = small_disk / "run"
    ended = invoke(*training(blocks, run))
    check_refused(ended, run)
    assert "the run folder cannot be written: " in ended.err
    assert "No space left on device" in ended.err
    left = checkpoints(run)
    assert 2 < len(left) < EPOCHS
    assert not (run / "metrics.json").exists()
    # It is refused in the same way again, and nothing is lost.
    check_refused(invoke(*training(blocks, run), "--resume"), run)
    assert checkpoints(run).items() >= left.items()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert invoke(*training(blocks, run), "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == whole


def test_a_checkpoint_larger_than_files_may_be(invoke: Invoke, blocks: Path, tmp_path: Path, whole: bytes) -> None:
    """As with a quota."""
    run = tmp_path / "run"
    assert invoke(*training(blocks, run, epochs=3)).code == 0
    left = checkpoints(run)
    code, out, err = in_process(*training(blocks, run), "--resume", before=with_files_of(16_384))
    check_refused(Outcome(code=code, out=out, err=err), run)
    assert "the run folder cannot be written: " in err
    assert "File too large" in err
    assert checkpoints(run) == left
    assert invoke(*training(blocks, run), "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == whole
