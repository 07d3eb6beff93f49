"""Processes: forks of one that has computed, and workers that torchrun starts."""

from __future__ import annotations

import os

import pytest

from sagann.processes import is_restarted, is_worker
from tests.forks import run_fresh


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_of_a_process_that_has_computed_is_refused_before_it_hangs() -> None:
    program = """
import os, warnings
import torch
from sagann.errors import InputError
from sagann.graph import demo_graph
from sagann.storage.verify import check_graph

warnings.simplefilter("ignore", DeprecationWarning)
graph = demo_graph()

def computes_in_a_fork():
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(2)
            check_graph(graph)
            code = 7
        except InputError as error:
            assert "spawn" in error.hint
            # As workers of PyTorch's DataLoader do.
            torch.set_num_threads(1)
            check_graph(graph)
            code = 8
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert computes_in_a_fork() == 7
torch.set_num_threads(2)
check_graph(graph)
assert computes_in_a_fork() == 8
"""
    run_fresh(program)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, False), ({"RANK": "0", "WORLD_SIZE": "1"}, False), ({"RANK": "1", "WORLD_SIZE": "2"}, True)],
)
def test_a_worker_has_a_rank_among_several(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_worker() is expected


def test_a_process_knows_whether_it_was_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not is_restarted()
    for count, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        assert is_restarted() is expected
