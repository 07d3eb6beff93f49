import numba
import numpy as np
import pytest
import torch

from sagann.graph.random_numbers import GOLDEN, mix, normals, uniforms


def test_mix_is_splitmix64():
    # The reference outputs of SplitMix64 for the seed 1234567.
    state, outputs = np.uint64(1234567), []
    with np.errstate(over="ignore"):
        for _ in range(3):
            state = state + GOLDEN
            outputs.append(int(mix(state)))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_normals_are_standard_normal():
    sample = normals(200, 501, seed=3, purpose=1).double()
    assert sample.shape == (200, 501)
    size = sample.numel()
    # Moments within five standard errors: 1, sqrt(2) and sqrt(96) are those of one number.
    assert abs(sample.mean()) < 5 / size**0.5
    assert abs(sample.var() - 1) < 5 * (2 / size) ** 0.5
    assert abs((sample**4).mean() - 3) < 5 * (96 / size) ** 0.5
    assert abs((sample[:, 1:] * sample[:, :-1]).mean()) < 5 / size**0.5


@pytest.mark.parametrize(
    "draw", [lambda seed: normals(7, 3, seed=seed, purpose=0), lambda seed: uniforms(21, seed=seed, purpose=0)]
)
def test_seed_decides_and_threads_do_not(draw):
    threads = numba.get_num_threads()
    first = draw(5)
    try:
        numba.set_num_threads(1)
        assert torch.equal(draw(5), first)
    finally:
        numba.set_num_threads(threads)
    assert not torch.equal(draw(6), first)
