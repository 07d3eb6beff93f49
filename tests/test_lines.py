"""Budgets of lines and pages are counted and held."""

from pathlib import Path

import pytest

from tests.lines import main


@pytest.mark.parametrize(("lines", "code"), [(3, 0), (2, 1)])
def test_a_folder_above_its_budget_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: int, code: int
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("x" * 1500)
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "inner" / "deep" / "a.py").write_text("a\nb\n")
    (tmp_path / "inner" / "b.py").write_text("a\n")
    (tmp_path / "pyproject.toml").write_text(f"[tool.lines]\ninner = {lines}\npages = 2\n")
    assert main(tmp_path) == code
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:4] == ["inner", "3", "of", str(lines)]
    assert ("above its budget by 1" in shown[0]) == bool(code)
    assert shown[1].split() == ["pages", "2", "of", "2"]
