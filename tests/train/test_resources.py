from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sagann.errors import InputError
from sagann.runtime.places import device_named
from sagann.train.resources import reproducible, resolve_device, versions


def test_peak_memory_is_in_bytes_and_remembers():
    # In a process of its own: here an earlier test may have peaked higher than this one grows.
    code = (
        "import torch; from sagann.train.resources import peak_rss_bytes; before = peak_rss_bytes(); "
        "grown = torch.ones(256 * 2**20, dtype=torch.uint8); at_most = peak_rss_bytes(); del grown; "
        "print(before, at_most, peak_rss_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, grown, after = map(int, done.stdout.split())
    assert before + 200 * 2**20 < grown < 2**40
    assert after > before + 200 * 2**20


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("cuda:99", "tpu"):
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*TrainConfig\.device.*cuda:N"):
            resolve_device(name)


def test_an_index_is_not_taken_for_a_smaller_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("cuda:1", "cuda:256"):
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*TrainConfig\.device"):
            resolve_device(name)
        with pytest.raises(InputError, match=rf"no such device: '{name}'; PyTorch .*stream\.device"):
            device_named(name)
    assert resolve_device("cuda:0") == device_named("cuda:0") == torch.device("cuda", 0)
    assert device_named(torch.device("cuda", 0)) == torch.device("cuda", 0)


def test_reproducible_is_undone():
    with reproducible(True, torch.device("cpu")):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    with reproducible(False, torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()


def test_versions():
    assert versions()["torch"] == torch.__version__
    assert versions()["threads"] == torch.get_num_threads()


def test_importing_train_loads_nothing_heavy():
    heavy = ("torchmetrics", "tensorboard", "rich", "pyarrow", "numba", "scipy", "safetensors")
    code = f"import sys, sagann.train; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
