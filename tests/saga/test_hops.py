from __future__ import annotations

import pytest
from torch import nn

from sagann.errors import InputError
from sagann.nn import SAGE
from sagann.saga.hops import count_hops


def test_a_model_walks_a_topology_for_each_layer_unless_it_says_otherwise() -> None:
    model = nn.Sequential(SAGE(4, 4), nn.Linear(4, 4), SAGE(4, 2))
    assert count_hops(model) == 2
    model.num_hops = 0
    assert count_hops(model) == 0


@pytest.mark.parametrize("num_hops", [-1, True, 2.0, "2"])
def test_a_number_of_hops_that_is_no_count_is_refused(num_hops: object) -> None:
    model = nn.Linear(4, 4)
    model.num_hops = num_hops
    with pytest.raises(InputError, match=r"num_hops is no count: .* \(in Linear.num_hops\)"):
        count_hops(model)
