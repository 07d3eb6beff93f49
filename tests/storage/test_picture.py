"""Figures as PNG files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagann.errors import MissingDependencyError
from sagann.storage import picture


def test_a_figure_replaces_a_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    path.write_text("old")
    figure = picture.new_figure(2, 1, feature="a picture")
    figure.subplots().plot([0, 1])
    picture.write_figure(path, figure)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "can_draw", lambda: False)
    with pytest.raises(
        MissingDependencyError, match=r"matplotlib cannot be imported \(in --plot\).*sagann\[plots\]"
    ):
        picture.new_figure(2, 1, feature="--plot")
