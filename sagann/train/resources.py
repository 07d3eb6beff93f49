"""What a run takes from its process: device, operators, random generators, Ctrl-C, peak memory, versions."""

from __future__ import annotations

import os
import platform
import random
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

import sagann
from sagann.config import TrainConfig
from sagann.kernels.seeds import generators_of
from sagann.runtime.places import devices_named, num_cuda_devices
from sagann.runtime.team import Team

# Typed by hand: the stubs do not know the properties of this module.
_deterministic: Any = torch.utils.deterministic


def resolve_devices(name: str) -> tuple[torch.device, ...]:
    """The devices that 'cpu', 'cuda', 'cuda:N', 'cuda:N,cuda:M' or 'auto' names, with their indices; an InputError where one is missing."""
    chosen = name if name != "auto" else "cuda" if num_cuda_devices() else "cpu"
    return devices_named(chosen, where="TrainConfig.device")


def resolve_device(name: str) -> torch.device:
    """The first of these devices, on which the model lies."""
    return resolve_devices(name)[0]


def device_of(config: TrainConfig) -> torch.device:
    """The device with the weights of a run; an InputError where one of the run's devices is missing."""
    if config.devices is not None:
        from sagann.hybrid.devices import Devices

        Devices.parse(config.devices, where="TrainConfig.devices").cuda_devices()
    return resolve_device(config.computes_on)


@contextmanager
def reproducible(enabled: bool, device: torch.device) -> Iterator[None]:
    """Inside the block, PyTorch allows only operators that give the same bits in every run. It has one state for all threads (:func:`own_turn`)."""
    if not enabled:
        yield
        return
    if device.type == "cuda":
        # cuBLAS is reproducible with a workspace of fixed size only, and torch insists on this variable.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = _deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN is a debugging aid that costs a pass over memory.
    _deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        _deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before, warn_only=warned_only)


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    # getrusage also counts the program that the process ran before this one.
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+)", status.read_text())):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions() -> dict[str, Any]:
    """Versions that the bits of a run depend on, and the number of threads."""
    return {
        "sagann": sagann.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def capture_rng(device: torch.device) -> dict[str, Any]:
    """The states of the global generators of torch (CPU and ``device``), NumPy and Python, as checkpoints can hold them."""
    found: Any = np.random.get_state()
    numpy = (found[0], found[1].tolist(), *found[2:])
    state = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": numpy}
    return state if device.type != "cuda" else {**state, "cuda": torch.cuda.get_rng_state(device)}


def restore_rng(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators to a result of :func:`capture_rng`; that of a device, if the result has one."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


_TRAINS = threading.RLock()
# A child process has none of the threads that hold or await the lock.
os.register_at_fork(after_in_child=_TRAINS._at_fork_reinit)  # type: ignore[attr-defined]


def own_turn(team: Team) -> AbstractContextManager[object]:
    """Inside the block, no other thread is in such a block: generators are those of the process. Workers, which wait for each other, are not held up."""
    return _TRAINS if team.size == 1 else nullcontext()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators inside the block, except those of other devices. Their states come back after the block."""
    before = capture_rng(device)
    for generator in generators_of(device):
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        restore_rng(before, device)


@contextmanager
def stop_on_interrupt(
    stop: Callable[[], None], on_message: Callable[[str], None], *, after: str = "epoch"
) -> Iterator[None]:
    """Inside the block, the first Ctrl-C calls ``stop`` and says after what the run stops; the second one interrupts as usual.

    Signals reach only the main thread. A thread of its own calls ``on_message``: the handler may interrupt the main thread while it writes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    # A handler may put into this queue, whatever it interrupts.
    pressed: SimpleQueue[bool] = SimpleQueue()

    def say() -> None:
        if pressed.get():
            on_message(f"Stopping after this {after}. Press Ctrl-C again to stop at once.")

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()
        pressed.put(True)

    speaker = threading.Thread(target=say, name="sagann-interrupt", daemon=True)
    speaker.start()
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        pressed.put(False)
        speaker.join()
