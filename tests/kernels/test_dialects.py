"""Which kernels run where."""

from __future__ import annotations

import pytest

from sagann.errors import InputError
from sagann.kernels import dialects
from sagann.kernels.edge import cpu, naive


@pytest.mark.parametrize(
    ("device", "name", "module"), [("cpu", "auto", cpu), ("cpu", "naive", naive), ("mps", "auto", naive)]
)
def test_auto_takes_the_fastest(device: str, name: str, module: object) -> None:
    assert dialects.dialect_for(device, name) is module


@pytest.mark.parametrize(("device", "name"), [("cuda", "cpu"), ("mps", "gpu")])
def test_a_dialect_of_another_device_is_refused(device: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"dialect '{name}' read .* device of type '{device}' \(in dialect\)"):
        dialects.dialect_for(device, name)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no such dialect of kernels: 'fast', expected one of auto, naive, cpu, gpu"
    ):
        dialects.check_dialect("fast")
