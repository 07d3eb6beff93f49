"""The benchmarks of streaming and of size: ways that compute the same within budgets, and whole commands at a tiny scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.contest import Rules
from bench.epochs.graphs import Shape, generate, graph_of
from bench.size.__main__ import main
from bench.size.limit import Limit
from bench.streaming import __main__ as streaming, simulated
from bench.streaming.__main__ import HEADER
from bench.streaming.worker import WAYS
from tests.plan.machines import ROUND


def cells_of(text: str) -> list[dict[str, str]]:
    """The rows of the report's table, by column."""
    names = [name.strip() for name in HEADER.splitlines()[0].split("|")[1:-1]]
    lines = [line for line in text.splitlines() if line.startswith("| tiny")]
    return [dict(zip(names, (cell.strip() for cell in line.split("|")[1:-1]), strict=True)) for line in lines]


@pytest.mark.thorough
def test_a_tiny_graph_gives_a_row_for_every_way_and_all_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streaming, "RULES", Rules(epochs=1, turn_s=0.0))
    given = ["--datasets", "tiny", "--models", "gcn", "--hidden", "16", "--rounds", "1", "--threads", "1"]
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given += ["--machine", str(machine)]
    assert streaming.main([*given, "--work", str(tmp_path / "work")]) == 0
    page = capsys.readouterr().out
    # Graphs, and what was spilled, are gone.
    assert list((tmp_path / "work").iterdir()) == []
    rows = cells_of(page)
    assert [row["epoch"] for row in rows] == list(WAYS.values())
    for row in rows:
        assert float(row["s"]) > 0
        assert float(row["loss differs by"]) < 1e-4
    folded, *limited = rows[2:]
    assert (folded["P"], folded["times P = 1 folded"]) == ("1", "1.00")
    for row in limited:
        assert int(row["P"]) > 1
        assert float(row["expected s"]) > 0
        assert float(row["planned MiB"]) <= float(row["budget MiB"]) <= float(folded["planned MiB"])


def test_a_simulated_epoch_takes_little_more_than_its_copies() -> None:
    graph = graph_of(generate(Shape(vertices=10_000, edges=300_000, features=602, classes=41)))
    count, steps, copies, loaded, copied_in, _, _, epoch, times = simulated.cells("gcn", graph)
    assert int(count) > 1 <= int(copies) < int(steps)
    assert float(copied_in) == pytest.approx(float(loaded) * 2**20 / 5.5e7, abs=0.01)
    assert float(copied_in) < float(epoch) < 1.15 * float(copied_in) + 1
    assert float(times) < 1.15


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
    assert "Estimated: " in said
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
