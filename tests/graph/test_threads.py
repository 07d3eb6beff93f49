"""Numba's threads and PyTorch's."""

from __future__ import annotations

import numba
import pytest
import torch

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.graph.random_numbers import normals
from sagann.graph.threads import pytorch_threads


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_parallel_loops_leave_the_number_of_threads_alone(three_threads: None) -> None:
    ids = torch.randint(100, (300_000,))
    Topology.from_coo(src=ids, dst=ids, num_src=100)
    normals(1000, 10, seed=0, purpose=1)
    assert torch.get_num_threads() == 3


def test_what_numba_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise ValueError("The threading layer requested 'x' is unknown to Numba.")

    monkeypatch.setattr(numba, "set_num_threads", refuse)
    with (
        pytest.raises(InputError, match=r"layer requested 'x' is unknown .*Unset NUMBA_NUM_THREADS and"),
        pytorch_threads(),
    ):
        pytest.fail("loops may not run")
