"""The size benchmark: its whole command at a tiny scale, its limit, and what it says of who was killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.size.__main__ import PEERS, main
from bench.size.contest import Result
from bench.size.limit import Ended, Limit, drop_cached
from bench.size.report import checked
from sagann.storage.file_cache import is_cached
from tests.plan.machines import ROUND

HOG = "import time; held = bytearray(200 << 20); held[::4096] = b'x' * len(held[::4096]); time.sleep(1); print('lives')"


def limited(num_bytes: int, tmp_path: Path) -> Limit:
    try:
        return Limit(f"sagann-test-{tmp_path.name}", num_bytes)
    except RuntimeError as error:
        pytest.skip(str(error))


def ended(**different: object) -> Ended:
    values: dict[str, object] = {"status": 0, "output": "", "errors": "", "seconds": 9.0, "own_bytes": 3 << 20}
    return Ended(**(values | {"kills": 0, "hits": 4} | different))  # type: ignore[arg-type]


def result(name: str, losses: tuple[float, ...], **different: object) -> Result:
    return Result(
        name=name, ended=ended(**different), losses=losses, epoch_s=(1.5,) * len(losses), got_to="2 epochs"
    )


def test_the_kernel_kills_who_holds_more_than_the_limit_and_says_so(tmp_path: Path) -> None:
    with limited(100 << 20, tmp_path) as limit:
        hog = limit.run([sys.executable, "-c", HOG])
        assert (hog.outcome, hog.kills, hog.output) == ("killed", 1, "")
        assert limit.run([sys.executable, "-c", "print('lives')"]).outcome == "ok"
    assert not limit.group.exists()
    with limited(400 << 20, tmp_path) as limit:
        lives = limit.run([sys.executable, "-c", HOG])
        assert (lives.outcome, lives.output.strip()) == ("ok", "lives")
        assert lives.own_bytes > 190 << 20
        failed = limit.run([sys.executable, "-c", "raise SystemExit(3)"])
        assert failed.outcome == "failed (3)"
        hangs = limit.run(["sh", "-c", "sleep 60 & wait"], timeout_s=0.2)
        assert (hangs.outcome, hangs.seconds < 30) == ("too slow", True)


def test_files_are_dropped_from_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(4 << 20))
    with path.open("rb") as file:
        file.read()
        if not is_cached(file.fileno(), 0, 4 << 20):
            pytest.skip("this file system does not tell what is cached, or keeps nothing")
        drop_cached(tmp_path)
        assert not is_cached(file.fileno(), 0, 4 << 20)


def test_losses_that_differ_are_found() -> None:
    same = [result("sagann", (3.0, 2.0)), result("pyg", (3.0, 2.0001))]
    assert checked(same)[0]
    assert not checked([*same, result("dgl", (3.0, 2.001))])[0]
    assert not checked([*same, result("dgl", (3.0,))])[0]
    assert not checked([result("sagann", ()), result("pyg", ())])[0]


@pytest.mark.thorough
def test_the_whole_command_at_a_tiny_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limited(1 << 40, tmp_path).close()
    machine = tmp_path / "machine.toml"
    machine.write_text(ROUND.to_toml())
    given = [
        "--work",
        str(tmp_path / "work"),
        "--scale",
        "0.0002",
        "--limit",
        "none",
        "--memory",
        "2MiB",
        "--hidden",
        "8",
    ]
    assert main([*given, "--check", "--machine", str(machine)]) == 0
    said = capsys.readouterr().out
    assert "A hundredth of it without a limit: losses of sagann" in said
    assert "Expected: " in said
    for name in ("sagann", *PEERS):
        assert f"| {name} | ok | 3 epochs |" in said
    assert "sagann trains, and its loss falls; killed: nobody of pyg:edge_index, pyg:csr." in said
    assert not (tmp_path / "work" / "at-1886" / "spill").exists()
