"""Devices of workers: worker i of a machine computes on CUDA device i of the machine, or all workers compute on processors."""

from __future__ import annotations

import torch
import torch.distributed as dist

from sagann.errors import InputError
from sagann.runtime.places import device_named, num_cuda_devices

_WHERE = "TrainConfig.device"
AUTO_ON_PROCESSORS = "The workers compute on processors: device 'auto' takes CUDA devices only where every worker has one of its own, and PyTorch has NCCL."
"What :func:`name_for_workers` does where there are CUDA devices that it leaves alone."


def name_for_workers(name: str, *, num_local: int) -> str:
    """The name of a device, where 'auto' is 'cuda' if the workers of this machine can compute on CUDA devices, else 'cpu'.

    Args:
        name: 'cpu', 'cuda', 'cuda:N' or 'auto'.
        num_local: number of workers on the machine.
    """
    if name != "auto":
        return name
    can_have_devices = num_local <= num_cuda_devices() and dist.is_nccl_available()
    return "cuda" if can_have_devices else "cpu"


def left_alone(name: str, device: torch.device) -> str | None:
    """What is to be said where the device was called ``name`` and became a processor beside CUDA devices; else None."""
    return AUTO_ON_PROCESSORS if name == "auto" and device.type == "cpu" and num_cuda_devices() else None


def device_of_worker(name: str, *, local_rank: int, num_local: int) -> torch.device:
    """The device that a worker computes on. On CUDA devices, every worker of a machine has one of its own.

    Args:
        name: 'cpu', 'cuda', or 'cuda:N' where the machine has one worker.
        local_rank: number of the worker among those of its machine, from 0.
        num_local: number of workers on the machine.
    Raises:
        InputError: there is no such device, one device is named for several workers, there are fewer devices than workers, or PyTorch has
            no NCCL.
    """
    kind, _, index = name.partition(":")
    count = num_cuda_devices()
    if kind != "cuda" or not count:
        return device_named(name, where=_WHERE)
    if index and num_local > 1:
        raise InputError(
            f"a CUDA device computes for one worker: device is '{name}', and the machine has {num_local} "
            f"workers (in {_WHERE})",
            hint="Name no number: with --device cuda, worker i of a machine computes on cuda:i.",
        )
    if num_local > count:
        raise InputError(
            f"there are fewer CUDA devices than workers: PyTorch sees {count}, and the machine has {num_local} "
            f"workers (in {_WHERE})",
            hint=f"Start at most {count} workers on this machine, or train on processors (--device cpu).",
        )
    device = device_named(name if index else f"cuda:{local_rank}", where=_WHERE)
    if not dist.is_nccl_available():
        raise InputError(
            f"workers on CUDA devices talk by NCCL: torch {torch.__version__} is built without NCCL (in {_WHERE})",
            hint="Install a CUDA build of torch for Linux, or train on processors (--device cpu).",
        )
    return device
