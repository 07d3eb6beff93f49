from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from sagann.train.codec import decode, encode
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


def test_states_come_back_from_a_checkpoint():
    tensors = {}
    encoded = json.loads(json.dumps(encode(capture_rng(CPU), tensors, name="rng")))
    expected = draw()
    restore_rng(decode(encoded, tensors), CPU)
    assert draw() == expected


def test_seeded_leaves_other_devices_alone(monkeypatch):
    seeded_all = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded_all.append)
    with seeded(3, CPU):
        drawn = float(torch.randn(()))
    assert not seeded_all
    assert drawn == float(torch.randn((), generator=torch.Generator().manual_seed(3)))


def test_seeded_gives_the_same_numbers_and_the_callers_states_back():
    def seed_all():
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed_all()
    undisturbed = draw()
    seed_all()
    with seeded(2**40, CPU):
        first = draw()
    with seeded(2**40, CPU):
        assert draw() == first
    assert draw() == undisturbed
