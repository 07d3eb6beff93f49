"""Cold bytes: the table of scores, on a small graph."""

from __future__ import annotations

import sys

import pytest

from bench.cold_bytes import scores


def test_no_score_takes_more_reads_than_the_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rmat", "2000,20000", "--epochs", "2", "--fanouts", "5,3", "8,4", "--hot", "0.1", "1"]
    monkeypatch.setattr(sys, "argv", ["scores", *words])
    scores.main()
    head, _, *rows = capsys.readouterr().out.splitlines()[-6:]
    assert head == (
        "| graph | fanouts | hot | no tiering, MiB | degree | rpr | wrpr | vip | other epochs | oracle "
        "| wrpr / degree | vip / degree | wrpr / oracle | vip / oracle |"
    )
    found = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:3] for row in found] == [
        ["R-MAT, 0.002M vertices, 0.02M edges", fanouts, hot]
        for fanouts in ("5, 3", "8, 4")
        for hot in ("10%", "100%")
    ]
    for row in found[::2]:
        *others, oracle = (float(share.removesuffix("% less")) for share in row[4:10])
        assert 0 < max(others) <= oracle < 100
    # Where all rows are hot, nothing is read from the cold tier.
    assert found[1][4:] == found[3][4:] == ["100.0% less"] * 6 + ["-"] * 4
