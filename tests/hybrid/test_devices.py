"""The list of trainers: what it names, and what is refused."""

from __future__ import annotations

import os

import pytest
import torch

from sagann.errors import InputError
from sagann.hybrid.devices import Devices


def test_names_and_cores() -> None:
    found = Devices.parse(" host:2, accelerator:3,accelerator", where="here")
    assert (found.uses_host, found.host_cores, found.accelerator_cores) == (True, 2, (3, 1))
    assert found.threads() == 2
    alone = Devices.parse("accelerator", where="here")
    assert (alone.uses_host, alone.host_cores, alone.accelerator_cores) == (False, None, (1,))


def test_processes_may_simulate_hardware_kernels() -> None:
    text = "host,accelerator:fpga,cuda:1,accelerator:3,accelerator:fpga:rtl,accelerator:fpga:kernel"
    found = Devices.parse(text, where="here")
    assert found.accelerator_cores == (1, 3, 1, 1)
    assert found.fpga == ("torch", None, "rtl", "kernel")


def test_cuda_devices_come_before_processes_and_count_as_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Devices.parse("accelerator:2,cuda:3,host:5,cuda", where="here")
    assert found.names == ("cuda:3", "cuda:0", "accelerator0")
    assert found.weights() == {"host": 5, "cuda:3": 5, "cuda:0": 5, "accelerator0": 2}
    assert Devices.parse("cuda", where="here").uses_host is False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        InputError, match=r"no such device.*cuda:3.*PyTorch sees 0.*Pass 'host' and 'accelerator', or install"
    ):
        found.cuda_devices()


@pytest.mark.parametrize("count", [0, 2])
def test_auto_is_the_processor_and_all_cuda_devices(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if count:
        found = Devices.parse("auto", where="here")
        assert (found.uses_host, found.names) == (True, ("cuda:0", "cuda:1"))
        return
    with pytest.raises(InputError, match="no CUDA device for the processor to train with"):
        Devices.parse("auto", where="here")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "auto,host",
        "cuda:0,cuda",
        "cuda:x,host",
        "host:1",
        "host,host,accelerator",
        "gpu,cuda",
        "accelerator:-1",
        "accelerator:fpga:2",
        "accelerator:kernel",
        "host:fpga,accelerator",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"no list of trainers.*host:2,accelerator:1"):
        Devices.parse(text, where="TrainConfig.devices")


@pytest.mark.parametrize("text", ["host:0,accelerator", "accelerator:999999999"])
def test_numbers_of_cores_have_a_range(text: str) -> None:
    with pytest.raises(InputError, match="number of cores is out of range"):
        Devices.parse(text, where="here")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell the cores of a process")
def test_accelerators_have_the_last_cores_and_the_processor_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3, 5, 7})
    devices = Devices.parse("host,accelerator:2,accelerator:1", where="here")
    assert devices.cores() == [(7, 5), (3,)]
    assert devices.threads() == 2
    for text in ("accelerator:6", "host:6,accelerator:1"):
        with pytest.raises(InputError, match="more cores than there are"):
            Devices.parse(text, where="here").cores()
    own = {
        "host,accelerator:2": (0, 2, 3),
        "host:2,accelerator:2": (0, 2),
        "host:2,cuda:0": (0, 2),
        "host,cuda:0": (),
        # It shares cores with the accelerator.
        "host:4,accelerator:2": (),
    }
    assert {text: Devices.parse(text, where="here").own_cores() for text in own} == own
