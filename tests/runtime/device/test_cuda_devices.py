"""CudaDevices: CUDA's codes are passed on; links and memory of real devices."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from sagann.errors import MissingDependencyError
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.device.pinning import PinningError, pin_in_pieces
from sagann.runtime.tiered import DeviceFeatures


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton seems to be installed, as where there are devices."""
    monkeypatch.setattr("sagann.runtime.device.cuda_devices.find_spec", lambda name: object())


class Cudart:
    """Pins what it is asked to, but refuses the n-th call."""

    def __init__(self, refuse_at: int) -> None:
        self.refuse_at, self.calls, self.pinned = refuse_at, list[tuple[int, int, int]](), set[int]()

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        self.calls.append((address, num_bytes, flags))
        if len(self.calls) == self.refuse_at:
            return 2
        self.pinned.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


@pytest.mark.parametrize("refuse_at", [1, 4])
def test_a_piece_that_cuda_refuses_leaves_nothing_pinned(monkeypatch: pytest.MonkeyPatch, refuse_at: int) -> None:
    cudart, memory, reported = Cudart(refuse_at), torch.zeros(5 * 4096, dtype=torch.uint8), list[int]()

    def zeros(count: int, device: torch.device) -> None:
        reported.append(count)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "zeros", zeros)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(CudaDevices, "is_pinned", lambda devices, memory: True)
    devices = CudaDevices([torch.device("cuda", 0)])
    with pytest.raises(PinningError, match=f"piece {refuse_at} of .*: the driver's error 2"):
        pin_in_pieces(memory, devices, piece_bytes=4096)
    assert len(cudart.calls) == refuse_at
    # Readable by all devices, and mapped into their addresses.
    assert {flags for _, _, flags in cudart.calls} == {3}
    assert not cudart.pinned
    # CUDA's second report of the same error is asked for, and dropped.
    assert len(reported) == 1


@pytest.mark.parametrize("answers", [(True, True), (True, False), (False, True)])
def test_devices_are_linked_that_read_each_other(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool, bool]
) -> None:
    opened: list[tuple[str, str]] = []

    def zeros(count: int, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(to=lambda target: opened.append((str(device), str(target))))

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda first, second: answers[first.index])
    monkeypatch.setattr(torch, "zeros", zeros)
    devices = CudaDevices([torch.device("cuda", 0), torch.device("cuda", 1)])
    assert len(devices) == 2
    assert devices.linked(0, 1) == all(answers)
    assert opened == ([("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")] if all(answers) else [])


def test_without_triton_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.device.cuda_devices.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"triton cannot be imported \(in hot rows on a CUDA device\)"):
        CudaDevices(["cuda:0"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_on_real_devices() -> None:
    devices = CudaDevices([torch.device("cuda", number) for number in range(torch.cuda.device_count())])
    features = torch.randn(10_000, 100)
    store = DeviceFeatures(features, "10%", devices=devices, replicated=0.1)
    assert store.is_in_place
    ids = torch.randint(10_000, (5000,))
    for number in range(len(devices)):
        reader = store.seen_from(number)
        found = reader.rows(ids)
        assert found.device == devices.device(number)
        assert torch.equal(found.cpu(), features[ids])
