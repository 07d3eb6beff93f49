"""Cold bytes: the counted rows are those that a store would read."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.cold_bytes import scores
from bench.cold_bytes.__main__ import main, num_cold_rows
from sagann.tiering import CACHES


def test_rows_are_counted_as_caches_decide() -> None:
    batches = [np.array(ids) for ids in ([0, 5], [1, 6], [0, 5], [5, 7])]
    cold = {name: num_cold_rows(made(10, 2, np.arange(10)), batches, 3) for name, made in CACHES.items()}
    # The hot rows 0 and 1 are hit by static three times. Look-ahead reads 5 once, and neither 6 nor 7 stays.
    assert cold["static"] == 5
    assert cold["look-ahead"] == 4


def test_the_table_has_a_row_for_a_graph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cold_bytes", "--rmat", "2000,20000", "--windows", "2", "--epochs", "2"])
    main()
    head, _, row = capsys.readouterr().out.splitlines()[-3:]
    assert head.startswith(
        "| graph | batches | no tiering, MiB | static | s3-fifo | look-ahead, 2 batches | optimum |"
    )
    assert row.startswith("| R-MAT, 0.002M vertices, 0.02M edges | ")
    assert row.endswith(" less | look-ahead |")


def test_no_score_takes_more_reads_than_the_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scores", "--rmat", "2000,20000", "--epochs", "2", "--fanouts", "5,3", "2"])
    scores.main()
    head, _, *rows = capsys.readouterr().out.splitlines()[-4:]
    assert head == "| graph | fanouts | no tiering, MiB | degree | rpr | wrpr | vip | oracle |"
    for row, fanouts in zip(rows, ("5, 3", "2"), strict=True):
        name, given, _, *shares = row.strip("| ").split(" | ")
        assert (name, given) == ("R-MAT, 0.002M vertices, 0.02M edges", fanouts)
        *others, oracle = (float(share.removesuffix("% less")) for share in shares)
        assert 0 < max(others) <= oracle <= 100
