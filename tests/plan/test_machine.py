"""Machines: what is written is read back, and what cannot be one is named."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sagann.errors import InputError
from sagann.hardware import KernelDesign
from sagann.plan.machine import DISK_UNITS, UNITS, Disk, Link, Machine
from sagann.ranges import RANGES

WHERE = "machine.toml"
VALUES: dict[str, Any] = {
    "name": "A processor",
    "num_cores": 2,
    "matmul_flops": 4e11,
    "stream_bytes": 2.5e10,
    "gather_bytes": 2e10,
    "gather_cached_bytes": 6e10,
    "cache_bytes": 32 << 20,
    "exp_per_s": 5e9,
    "copy_bytes": 9.5e9,
    "pick_bytes": 8e9,
    "step_s": 6e-5,
}
DISK = Disk(read_bytes_per_s=1.5e9, cached_bytes_per_s=5e9, write_bytes_per_s=1e9)
OF_DEVICES = {"host_to_device_bytes": 5e10, "device_to_host_bytes": 4.5e10}
"Missing where the processor computes."


def machine_of(**values: Any) -> Machine:
    return Machine(**{**VALUES, "disks": {"disk0": DISK}, **values})


def text_with(**changes: str | None) -> str:
    """A machine's TOML with values replaced by other text, or left out."""
    rates, table = machine_of().to_toml().split("\n\n", 1)
    lines = dict(line.split(" = ", 1) for line in rates.splitlines())
    lines |= {name: value for name, value in changes.items() if value is not None}
    kept = [f"{name} = {value}" for name, value in lines.items() if changes.get(name, "") is not None]
    return "\n".join([*kept, table])


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        Machine.from_toml(text, where=WHERE)
    assert caught.value.message.endswith(f" (in {WHERE})")
    assert caught.value.hint.endswith(".")
    return caught.value


positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    name=names | st.sampled_from(['"quoted" \\ # name', "two\nlines", "", "Prozessor µ ☃", "a\x7f\x00b"]),
    rates=st.lists(positive, min_size=11, max_size=11),
    counts=st.lists(st.integers(1, 2**63 - 1), min_size=2, max_size=2),
)
def test_what_is_written_is_what_is_read(name: str, rates: list[float], counts: list[int]) -> None:
    values = iter(rates)
    whole = {"num_cores": counts[0], "cache_bytes": counts[1], "name": name}
    disks = {"disk0": Disk(**{each: next(values) for each in DISK_UNITS})}
    of_device0 = {each: whole[each] if each in whole else next(values) for each in VALUES}
    machine = machine_of(**of_device0, disks=disks)
    text = machine.to_toml()
    assert Machine.from_toml(text, where=WHERE) == machine
    assert tomllib.loads(text) == {
        name: value for name, value in asdict(machine).items() if value not in (None, {})
    }


def test_numbers_are_written_in_few_digits_and_read_as_a_person_writes_them() -> None:
    written = machine_of(gather_bytes=1e11 / 3, stream_bytes=3.764e10).to_toml()
    for line in ("stream_bytes = 3.764e+10  #", "gather_bytes = 33333333333.333332  #", "step_s = 6e-05  #"):
        assert line in written
    found = Machine.from_toml(text_with(matmul_flops="400_000_000_000", cache_bytes="32e6"), where=WHERE)
    assert found == machine_of(cache_bytes=32_000_000)
    assert type(found.matmul_flops) is float
    assert type(found.cache_bytes) is int


@pytest.mark.parametrize("name", ["name", "num_cores", "step_s"])
def test_a_missing_field(name: str) -> None:
    error = refused(text_with(**{name: None}))
    assert str(error) == (
        f"a machine lacks a field: '{name}' is missing (in machine.toml). "
        f"Add it: {UNITS[name]}; `sagann machine --out FILE` writes a whole one."
    )


def test_copies_to_a_device_are_both_stated_or_neither() -> None:
    whole = machine_of(**OF_DEVICES)
    assert Machine.from_toml(whole.to_toml(), where=WHERE) == whole
    assert not any(name in machine_of().to_toml() for name in OF_DEVICES)
    for name, value in OF_DEVICES.items():
        error = refused(machine_of(**{name: value}).to_toml())
        assert f": {name} (in" in error.message
        assert error.hint == "State host_to_device_bytes and device_to_host_bytes both, or neither."
    zero = machine_of(**{**OF_DEVICES, "device_to_host_bytes": 0.0})
    assert "device_to_host_bytes of a machine is not a positive number: " in refused(zero.to_toml()).message


def test_an_unknown_field() -> None:
    error = refused(text_with(gather_rate="1.0", z="1"))
    assert "a machine has no such field: 'gather_rate', and 1 more (in" in error.message
    assert "gather_bytes" in error.hint


@pytest.mark.parametrize("value", ["0", "-0.5", "nan", "inf", "1" + 400 * "0", '"fast"', "true", "[1]", "{}"])
def test_what_is_not_positive_and_finite_or_no_number(value: str) -> None:
    for name in ("num_cores", "matmul_flops"):
        error = refused(text_with(**{name: value}))
        what = f"{name} of a machine is not a positive number: "
        assert error.message.startswith(what)
        assert UNITS[name] in error.hint
        assert len(error.message) <= len(what) + 80


_, _TABLES = machine_of().to_toml().split("\n\n", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'name' is missing, and 11 more"),
        (machine_of().to_toml().replace(_TABLES, ""), ": 'disks.disk0' is missing (in"),
        ("[machine]\nname = 'x'", ": 'machine' (in"),
        (text_with(num_cores="2.5"), f"num_cores of a machine is not {RANGES['num_cores']}: 2.5 (in"),
        (text_with(cache_bytes="1e+30"), f"cache_bytes of a machine is not {RANGES['cache_bytes']}: 1e+30 (in"),
        (text_with(step_s="0x" + "f" * 5000), ": a value with an integer of thousands of digits (in"),
        (text_with(name="7"), "name of a machine is not a text: "),
        ("a = 1\na = 2", "a machine is not TOML: "),
        ("x = " + "1" * 5000, "a machine is not TOML: "),
    ],
)
def test_what_is_no_machine_is_named(text: str, said: str) -> None:
    assert said in refused(text).message


def test_a_device_names_its_disk() -> None:
    fast = replace(DISK, read_bytes_per_s=9e9)
    machine = machine_of(disks={"disk0": DISK, "disk1": fast}, devices={"device1": {"disk": "disk1"}})
    assert Machine.from_toml(machine.to_toml(), where=WHERE) == machine
    assert machine.disk_of("device1") == ("disk1", fast)
    assert machine.disk_of("device2") == ("disk0", DISK)
    assert machine.device("device1") == machine


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("[disks.a]\nread_bytes_per_s = 1", "disks.a.cached_bytes_per_s {} a positive number: None"),
        ("[disks.a]\nspeed = 1", "disks.a.speed {} one of read_bytes_per_s, cached_bytes_per_s"),
        ("[devices.a]\ndisk = 'b'", "devices.a.disk {} a name of [disks]: 'b'"),
        ("[links.a]\nlatency_s = 1", "links.a.bytes_per_s {} a positive number: None"),
        ("[links.a]\nbytes_per_s = 1\nswitches = ['b']", "not a list of names of [switches]"),
        ("[links.a]\nbytes_per_s = 1\nspeed = 2", "links.a.speed {} one of bytes_per_s, latency_s"),
        ("[switches]\nroot = true", "switches.root {} a positive number"),
        ("[devices]\na = 3", "devices.a {} a table"),
        ("[devices.a]\nspeed = 3", "devices.a.speed {} one of copy_bytes"),
    ],
)
def test_wrong_tables_are_named(lines: str, said: str) -> None:
    assert said.format("of a machine is not") in str(refused(f"{text_with()}\n{lines}\n"))


def test_devices_links_and_switches_are_written_and_read_again() -> None:
    ways = {"a.copy_in": Link(bytes_per_s=100.0, switches=("root",)), "a-b": Link(bytes_per_s=50.0, latency_s=0.5)}
    machine = machine_of(devices={"b": {"matmul_flops": 5e8}}, links=ways, switches={"root": 150.0})
    assert Machine.from_toml(machine.to_toml(), where=WHERE) == machine
    assert machine.device("b").matmul_flops == 5e8
    assert machine.device("b").stream_bytes == machine.stream_bytes


KERNEL = {"scatter_pes": 4, "frequency_hz": 2e8}


def test_a_device_has_hardware_kernels() -> None:
    machine = machine_of(devices={"a": {"kernel": KERNEL}, "b": {"step_s": 1e-3, "kernel": {}}, "c": {}})
    assert Machine.from_toml(machine.to_toml(), where=WHERE) == machine
    assert machine.kernel("a") == KernelDesign(scatter_pes=4, frequency_hz=2e8)
    assert [machine.kernel(name) for name in ("b", "c", "d")] == [KernelDesign(), None, None]


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ({"macs": 2048}, "kernels have no such size: 'macs' (in machine.toml, devices.a.kernel)"),
        ({"lanes": 16.0}, "lanes of kernels is not a whole number: 16.0 (in"),
        ({"lanes": True}, "lanes of kernels is not a whole number: True (in"),
        ({"frequency_hz": "fast"}, "frequency_hz of kernels is not a number: 'fast' (in"),
        ({"scatter_pes": 12}, "scatter_pes is 12, expected a power of 2 (in"),
        ({"scatter_pes": 512}, "scatter_pes is 512, expected at most 256 (in"),
        ({"frequency_hz": 0.0}, "frequency_hz is 0.0, expected at least 1 (in"),
        ({"window_rows": -8}, "window_rows is -8, expected a power of 2 (in"),
        (7, "devices.a.kernel of a machine is not a table: 7 (in"),
    ],
)
def test_what_is_no_kernel_is_named(kernel: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        Machine.from_toml(machine_of(devices={"a": {"kernel": kernel}}).to_toml(), where=WHERE)
    assert said in caught.value.message
    assert caught.value.hint.endswith(".")


def test_a_device_says_whether_it_pipelines_layers() -> None:
    machine = machine_of(devices={"a": {"matmul_flops": 1e12, "pipelines_layers": True}, "b": {"step_s": 1e-3}})
    assert Machine.from_toml(machine.to_toml(), where=WHERE) == machine
    assert [machine.pipelines_layers(name) for name in ("a", "b", "c")] == [True, False, False]
    assert machine.device("a") == replace(machine, matmul_flops=1e12)
    error = refused(machine_of(devices={"a": {"pipelines_layers": 1}}).to_toml())
    assert ": 1 (in" in error.message
    assert error.hint == "Write true or false."
