from __future__ import annotations

import pytest
from torch import nn

from sagann.saga.hooks import has_hooks


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_hooks_of_a_module_and_of_all_modules_are_seen(register: str) -> None:
    module = nn.Linear(2, 2)
    assert not has_hooks([module])
    handle = getattr(module, register)(lambda *_: None)
    assert has_hooks([nn.ReLU(), module])
    handle.remove()
    assert not has_hooks([module])
    of_all = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert has_hooks([module])
    of_all.remove()
    assert not has_hooks([module])
