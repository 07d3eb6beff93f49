"""Every generated gather equals the hand-written one, with rows narrower than a vector and wider than a tile, and with hubs."""

from __future__ import annotations

import pytest
import torch

from bench.kernels.gathers import GATHERS, topology_of
from bench.kernels.yardstick import Yardstick, can_run
from sagann.kernels.edge import cpu

pytestmark = pytest.mark.skipif(not can_run(), reason="needs g++, and AVX2 or AVX-512")


@pytest.mark.parametrize("features", [7, 143])
@pytest.mark.parametrize("name", GATHERS)
def test_a_gather_equals_the_yardstick(name: str, features: int) -> None:
    torch.manual_seed(0)
    topology = topology_of("power law", 500, 9_000)
    gather = GATHERS[name](topology, features)
    results = [torch.full(form.shape, -1e30).to(form.dtype) for form in gather.results]

    Yardstick(topology).run(name, *gather.yardstick, *results, num_features=features)

    found = cpu.run(gather.function, topology, gather.arrays)
    assert len(found) == len(results)
    assert torch.tensor(1e-45) * 1 > 0, "the library has changed the arithmetic of the process"
    torch.testing.assert_close(found[0], results[0], rtol=1e-4, atol=1e-3)
