"""Checks of a store's arguments name the store that was given them."""

from __future__ import annotations

import pytest
import torch

from sagann.errors import InputError
from sagann.graph.rows import csr_tensor
from sagann.runtime.tiered.checks import checked_ids, checked_order, require_on_host


def test_ids_are_an_array_of_their_own_order() -> None:
    assert checked_ids(torch.tensor([4, 0, 4]), 5, "store, ids").tolist() == [4, 0, 4]
    with pytest.raises(InputError, match=r"vertex id out of range: 5, .* \(in store, ids, position 2\)"):
        checked_ids(torch.tensor([4, 0, 5]), 5, "store, ids")


def test_an_order_has_no_id_twice() -> None:
    assert checked_order(torch.tensor([4, 0, 1]), 5, "store, hottest").tolist() == [4, 0, 1]
    with pytest.raises(InputError) as caught:
        checked_order(torch.tensor([4, 0, 4]), 5, "store, hottest")
    assert str(caught.value) == (
        "vertex repeated: 1 of 3 ids stand a second time (in store, hottest). "
        "Pass distinct ids of vertices as int64 [n], the hottest first."
    )


def test_features_without_tiers() -> None:
    require_on_host(torch.ones(2, 3), "store, features")
    sparse = csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), num_columns=3)
    with pytest.raises(InputError, match=r"sparse features have no tiers: .* \(in store, features\)"):
        require_on_host(sparse, "store, features")
    with pytest.raises(InputError, match=r"features are not in memory of the processor: a tensor on .* 'meta'"):
        require_on_host(torch.empty(2, 3, device="meta"), "store, features")
    with pytest.raises(InputError, match=r"features that learn would get no gradient: .* \(in store, features\)"):
        require_on_host(torch.ones(2, 3, requires_grad=True), "store, features")
