"""Which device a worker computes on, and what is done with errors of NCCL. The devices are simulated: PyTorch says how many there are."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sagann import processes
from sagann.errors import InputError, WorkerError
from sagann.runtime.workers import Workers, carriers, group
from sagann.runtime.workers.carriers import AUTO_ON_PROCESSORS, device_of_worker, name_for_workers
from sagann.train.identity import device_together
from tests.runtime.workers.threads import in_threads


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)


@pytest.mark.usefixtures("two_devices")
def test_each_worker_of_a_machine_has_a_device_of_its_own() -> None:
    for name, local_rank, num_local, expected in (
        ("cuda", 1, 2, "cuda:1"),
        ("cuda", 0, 1, "cuda:0"),
        ("cuda:1", 0, 1, "cuda:1"),
        ("cpu", 5, 8, "cpu"),
    ):
        assert device_of_worker(name, local_rank=local_rank, num_local=num_local) == torch.device(expected)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("name", "num_local", "message"),
    [
        (
            "cuda",
            3,
            r"PyTorch sees 2, and the machine has 3 workers \(in TrainConfig.device\)\. Start at most 2 workers",
        ),
        ("cuda:1", 2, "a CUDA device computes for one worker: .* the machine has 2 workers .*Name no number"),
        ("cuda:2", 1, "no such device: 'cuda:2'; PyTorch sees 2 CUDA devices"),
    ],
)
def test_devices_that_do_not_suffice_are_refused(name: str, num_local: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        device_of_worker(name, local_rank=0, num_local=num_local)


@pytest.mark.usefixtures("two_devices")
def test_auto_takes_devices_that_the_workers_can_compute_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, num_local, expected in (("auto", 2, "cuda"), ("auto", 3, "cpu"), ("cuda", 3, "cuda")):
        assert name_for_workers(name, num_local=num_local) == expected
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert name_for_workers("auto", num_local=2) == "cpu"
    assert device_of_worker("cpu", local_rank=0, num_local=2) == torch.device("cpu")
    with pytest.raises(InputError, match=r"workers on CUDA devices talk by NCCL: .* is built without NCCL"):
        device_of_worker("cuda", local_rank=0, num_local=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"no such device: 'cuda'; PyTorch sees 0 CUDA devices"):
        device_of_worker("cuda", local_rank=1, num_local=2)


def test_why_auto_leaves_devices_alone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def said(workers: Workers) -> list[str]:
        found: list[str] = []
        device = device_together("auto", workers, found.append)
        assert device == torch.device("cpu")
        return found

    assert in_threads(said, 2) == [[AUTO_ON_PROCESSORS]] * 2


def test_workers_choose_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert in_threads(lambda workers: device_together("auto", workers), 2) == [torch.device("cpu")] * 2

    def said(workers: Workers) -> str:
        with pytest.raises(InputError) as caught:
            device_together("cuda" if workers.rank else "cpu", workers)
        return str(caught.value)

    first, second = in_threads(said, 2)
    # The first worker has a device, and ends with the second one.
    assert "worker 1 has failed while choosing a device" in first
    assert "no such device: 'cuda'" in first
    assert "no such device: 'cuda'" in second


@pytest.mark.usefixtures("two_devices")
def test_workers_compute_on_devices_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def said(workers: Workers) -> str:
        with pytest.raises(InputError) as caught:
            device_together("cpu" if workers.rank else "cuda", workers)
        return str(caught.value)

    for text in in_threads(said, 2):
        assert "the workers disagree: device is cuda at worker 0, and cpu at worker 1" in text


class Stalled(Workers):
    """A worker whose transfers end with an error of the carrier."""

    def __init__(self, text: str) -> None:
        super().__init__(rank=0, size=3)
        self._carriers["cpu"] = StalledCarrier(text)


class StalledCarrier(carriers.HostCarrier):
    def __init__(self, text: str) -> None:
        self.text = text

    def operations(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int
    ) -> list[carriers.Operation]:
        def fail() -> list[object]:
            raise dist.DistBackendError(self.text)

        return [((1, 2), fail)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 60001 milliseconds before timing out.",
            r"one of the workers 1, 2 is gone: no answer within 60 s while talking .*longer --worker-timeout",
        ),
        (
            "NCCL communicator was aborted on rank 0.",
            r"one of the workers 1, 2 is gone: its connection was lost \(NCCL communicator was aborted on rank 0.\) while talking",
        ),
    ],
)
def test_an_error_of_nccl_names_the_workers_of_the_transfer(text: str, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        Stalled(text).transfer({1: torch.ones(1), 2: torch.ones(1)}, {}, "talking")


def test_devices_that_do_not_find_each_other_say_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(device: torch.device, *, timeout_s: float) -> carriers.HostCarrier:
        raise dist.DistBackendError("NCCL error: Duplicate GPU detected")

    monkeypatch.setattr(group, "connected_devices", connect)
    message = r"the devices of the workers do not find each other: NCCL error: Duplicate GPU detected \(in worker 1 of 2, meta\)\. NCCL_DEBUG"
    with pytest.raises(WorkerError, match=message):
        Workers(rank=1, size=2).compute_on(torch.device("meta"))


@pytest.mark.usefixtures("two_devices")
def test_where_one_machine_has_too_few_devices_auto_is_processors_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if two machines had two devices each, and the second one had three workers.
    here = threading.local()
    monkeypatch.setattr(processes, "num_local_workers", lambda: here.num_local)

    def chosen(workers: Workers) -> torch.device:
        here.num_local = 3 if workers.rank else 2
        return device_together("auto", workers)

    assert in_threads(chosen, 2) == [torch.device("cpu")] * 2
