"""Published machines are whole, and every figure says where it comes from."""

from __future__ import annotations

from importlib.resources import files

import pytest

from sagann.errors import InputError
from sagann.machines import NAMES, published_machine

ACCELERATORS = {
    "epyc-7763-a5000": 4,
    "epyc-7763-u250": 4,
    "xeon-8163-v100": 8,
    "xeon-e5-2690-p100": 4,
    "96-vcpu-t4": 8,
}
SOURCES = ("Table II", "Table IV", "data sheet", "assumption", "Sec. V", "two threads of")


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_has_its_accelerators(name: str) -> None:
    machine = published_machine(name)
    assert list(machine.devices) == [f"accelerator{number}" for number in range(ACCELERATORS[name])]
    assert list(machine.links) == [f"{each}.copy_in" for each in machine.devices]
    assert machine.pipelines_layers("accelerator0") is (name == "epyc-7763-u250")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_the_first_accelerator_and_the_host_has_a_source(name: str) -> None:
    text = (files("sagann.machines") / f"{name}.toml").read_text()
    assert text.startswith("# ")
    seen = set()
    for line in text.splitlines():
        key = line.split(" = ")[0]
        if " = " not in line or key == "name" or key in ("stream_bytes", "gather_cached_bytes", "exp_per_s"):
            continue
        if "read_bytes_per_s" in line or "cached_bytes_per_s" in line or "write_bytes_per_s" in line:
            continue
        # The host's figures and those of the first accelerator have a comment each; the other accelerators repeat the first.
        if "#" not in line:
            assert key in seen
            continue
        seen.add(key)
        assert any(source in line for source in SOURCES), line


def test_names_are_the_files() -> None:
    found = {
        each.name.removesuffix(".toml")
        for each in files("sagann.machines").iterdir()
        if each.name.endswith(".toml")
    }
    assert found == set(NAMES)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no published machine of that name: 'u250' \(in sagann.machines\)\. Name one of"
    ):
        published_machine("u250")
