"""The list of trainers: what it names, and what is refused."""

from __future__ import annotations

import os

import pytest

from sagann.errors import InputError
from sagann.hybrid.devices import Devices


def test_names_and_cores() -> None:
    found = Devices.parse(" host:2, accelerator:3,accelerator", where="here")
    assert (found.uses_host, found.host_cores, found.accelerator_cores) == (True, 2, (3, 1))
    assert found.threads() == 2
    alone = Devices.parse("accelerator", where="here")
    assert (alone.uses_host, alone.host_cores, alone.accelerator_cores) == (False, None, (1,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:1",
        "host,host,accelerator",
        "gpu,accelerator",
        "accelerator:",
        "accelerator:-1",
        "host;accelerator",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no list of trainers") as refused:
        Devices.parse(text, where="TrainConfig.devices")
    assert "host:2,accelerator:1" in str(refused.value)


@pytest.mark.parametrize("text", ["host:0,accelerator", "accelerator:999999999"])
def test_numbers_of_cores_have_a_range(text: str) -> None:
    with pytest.raises(InputError, match="number of cores is out of range"):
        Devices.parse(text, where="here")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell the cores of a process")
def test_accelerators_have_the_last_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3, 5, 7})
    devices = Devices.parse("host,accelerator:2,accelerator:1", where="here")
    assert devices.cores() == [(7, 5), (3,)]
    assert devices.threads() == 2
    with pytest.raises(InputError, match="more cores than there are"):
        Devices.parse("accelerator:6", where="here").cores()
