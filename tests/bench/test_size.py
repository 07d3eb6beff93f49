"""The size benchmark: its whole command at a tiny scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.size.__main__ import main
from bench.size.limit import Limit
from tests.plan.machines import ROUND


def limited(num_bytes: int, tmp_path: Path) -> Limit:
    try:
        return Limit(f"sagann-test-{tmp_path.name}", num_bytes)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.thorough
def test_the_whole_command_at_a_tiny_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limited(1 << 40, tmp_path).close()
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given = f"--scale 0.0002 --limit none --memory 2MiB --hidden 8 --work {tmp_path}/work --machine {machine}"
    assert main(given.split()) == 0
    said = capsys.readouterr().out
    assert "Expected: " in said
    for name in ("sagann", "pyg:edge_index", "pyg:csr"):
        assert f"| {name} | ok | 3 epochs |" in said
    assert "sagann trains, and its loss falls; killed: nobody of pyg:edge_index, pyg:csr." in said
    assert not (tmp_path / "work" / "at-1886" / "spill").exists()


@pytest.mark.thorough
@pytest.mark.distributed
def test_two_workers_train_a_tiny_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limited(1 << 40, tmp_path).close()
    options = ["--scale", "0.0005", "--limit", "none", "--memory", "4MiB", "--hidden", "8", "--epochs", "2"]
    assert main(["--work", str(tmp_path), *options, "--workers", "2", "--threads", "1"]) == 0, (
        capsys.readouterr().err
    )
    page = capsys.readouterr().out
    assert "sagann trains, and its loss falls." in page
    assert page.count("| ok | 2 epochs |") == 2
    assert not list((tmp_path / "at-4715" / "spill").glob("*"))
