from __future__ import annotations

from pathlib import Path

import pytest

from sagann.storage import load_graph
from tests.cli.conftest import Invoke


def test_info_of_a_folder(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "info", blocks)
    assert outcome.code == 0
    num_edges = load_graph(blocks).num_edges
    for text in ("120", f"{num_edges} directed", "6, dense float32", "train 72, val 24, test 24", "KiB"):
        assert text in outcome.out


def test_check_of_a_sound_folder(invoke: Invoke, blocks: Path) -> None:
    outcome = invoke("data", "check", blocks)
    assert outcome.code == 0
    assert outcome.out == f"{blocks} is sound.\n"


def test_demo_is_sound(invoke: Invoke) -> None:
    assert invoke("data", "check", "demo").code == 0


@pytest.mark.parametrize("command", ["info", "check"])
@pytest.mark.parametrize("name", ["nowhere", "", ".", "x" * 300, "a\0b"])
def test_nothing_there(invoke: Invoke, command: str, name: str) -> None:
    outcome = invoke("data", command, name)
    assert outcome.code == 2, outcome.err
    assert outcome.err.startswith("Error: ")
    assert "  fix: " in outcome.err
