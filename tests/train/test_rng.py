from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sagann.errors import CheckpointError
from sagann.train.rng import capture_rng, restore_rng, seeded

CPU = torch.device("cpu")


def draw():
    # Gaussians come in pairs, of which the second is kept for later: it is state too.
    return [
        random.gauss(0, 1),
        random.random(),
        np.random.standard_normal(),
        np.random.rand(),
        float(torch.randn(())),
    ]


@pytest.mark.parametrize("draws_before", [0, 1, 2, 3])
def test_every_generator_continues_where_it_was(draws_before):
    with seeded(3, CPU):
        for _ in range(draws_before):
            draw()
        state = capture_rng(CPU)
        expected = [draw() for _ in range(700)]
        draw()
        restore_rng(state, CPU)
        assert [draw() for _ in range(700)] == expected


def test_states_are_bytes():
    assert {tensor.dtype for tensor in capture_rng(CPU).values()} == {torch.uint8}


def test_seeded_leaves_other_devices_alone(monkeypatch):
    seeded_all = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded_all.append)
    with seeded(3, CPU):
        drawn = float(torch.randn(()))
    assert not seeded_all
    assert drawn == float(torch.randn((), generator=torch.Generator().manual_seed(3)))


def test_seeded_gives_the_same_numbers_and_the_callers_states_back():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    state = capture_rng(CPU)
    with seeded(2**40, CPU):
        first = draw()
    with seeded(2**40, CPU):
        assert draw() == first
    assert all(torch.equal(tensor, state[name]) for name, tensor in capture_rng(CPU).items())


def test_states_that_are_missing_or_cut_are_refused():
    state = capture_rng(CPU)
    with pytest.raises(CheckpointError, match="no state of the numpy generator; present: torch, python"):
        restore_rng({name: state[name] for name in ("torch", "python")}, CPU)
    with pytest.raises(CheckpointError, match="random state has the wrong size: 8 bytes"):
        restore_rng({**state, "python": state["python"][:8]}, CPU)
