"""Published machines have their accelerators."""

from __future__ import annotations

import pytest

from bench.papers.hyscale_hardware import vendor_dsp
from sagann.errors import InputError
from sagann.hardware.resources import ALVEO_U250
from sagann.machines import NAMES, published_machine

ACCELERATORS = {
    "epyc-7763-a5000": 4,
    "epyc-7763-u250": 4,
    "xeon-8163-v100": 8,
    "xeon-e5-2690-p100": 4,
    "96-vcpu-t4": 8,
}
LINKED = "p100x8"


def test_names_are_those_of_the_files() -> None:
    assert set(NAMES) == {*ACCELERATORS, LINKED}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_machine_has_its_accelerators(name: str) -> None:
    machine = published_machine(name)
    assert list(machine.devices) == [f"accelerator{number}" for number in range(ACCELERATORS[name])]
    assert list(machine.links) == [f"{each}.copy_in" for each in machine.devices]
    assert machine.pipelines_layers("accelerator0") is (name == "epyc-7763-u250")
    assert all((machine.kernel(each) is not None) is (name == "epyc-7763-u250") for each in machine.devices)


def test_kernels_are_those_of_table_4_and_fit_their_device() -> None:
    first, *others = (published_machine("epyc-7763-u250").kernel(f"accelerator{number}") for number in range(4))
    assert first is not None
    assert others == [first] * 3
    assert (first.scatter_pes, first.lanes * first.array_columns, first.frequency_hz) == (8, 2048, 3e8)
    assert vendor_dsp(first) <= ALVEO_U250.dsp


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no published machine of that name: 'u250' \(in sagann.machines\)\. Name one of"
    ):
        published_machine("u250")
