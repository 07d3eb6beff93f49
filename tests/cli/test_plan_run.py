"""``sagann plan``: what a model becomes."""

from __future__ import annotations

import pytest

from sagann.cli.main import main


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", "--data", "demo", *arguments]) == 0
    return capsys.readouterr().out


def test_says_what_each_layer_was_made_into(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gated-gcn", "--hidden", "8")
    assert "GatedGCN: sum over the edges" in shown
    assert "moved off the edges: linear, once per source" in shown
    assert "fused" in shown
    assert "times fewer" in shown


def test_says_what_is_kept_and_what_changes_places(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gcn", "--hidden", "64", "--dropout", "0")
    assert "kept: what is gathered depends on constant features alone" in shown
    assert "commuted: linear map before the gather" in shown


def test_shows_the_generated_source(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gat", "--hidden", "16", "--heads", "2", "--show", "kernels")
    assert "def kernel(p_args):" in shown
    # Forward, and backward by destination and by source, in each of two layers.
    assert shown.count("def kernel(p_args):") == 6


def test_foretells_how_an_epoch_is_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _plan(capsys, "--model", "gcn", "--hidden", "16", "--encoder", "linear", "--memory", "20MiB")
    assert "intervals of" in shown
    assert "Memory: at most" in shown
    assert "loaded" in shown
    assert "P = 1: everything fits" in _plan(capsys, "--model", "gcn", "--hidden", "16", "--memory", "8GiB")
    assert main(["plan", "--data", "demo", "--model", "gcn", "--memory", "1kB"]) == 2
    assert "are needed" in capsys.readouterr().err


def test_refuses_what_it_cannot_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--data", "demo", "--show", "future"]) == 2
    assert "Choose one of program, kernels" in capsys.readouterr().err
