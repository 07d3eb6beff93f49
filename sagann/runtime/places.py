"""Places: a graph that is streamed lies on the host, and the model on the device that computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sagann.compiler.trace import tensors_of
from sagann.errors import InputError
from sagann.graph.topology import Topology


def device_named(device: torch.device | str) -> torch.device:
    """The device that computes, with its index.

    Raises:
        InputError: there is none of that name, or it is neither a CPU nor a CUDA device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _no_device(device, f"PyTorch says: {str(error).splitlines()[0]}") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise _no_device(device, "models are streamed to the CPU and to CUDA devices")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (found.index or 0) >= count:
        raise _no_device(device, f"PyTorch sees {count} CUDA devices")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def _no_device(device: object, what: str) -> InputError:
    return InputError(
        "no such device to stream to",
        value=f"{str(device)!r}; {what}",
        where="stream.device",
        fix="Pass 'cpu', or install a CUDA build of torch and its driver, and pass 'cuda' or 'cuda:N'.",
    )


def require_on_host(device: torch.device, what: str) -> None:
    """Refuse what lies on a device, of a graph that is streamed.

    Raises:
        InputError: it does.
    """
    if device.type != "cpu":
        raise InputError(
            "a graph that is streamed must lie on the host",
            value=f"its {what} are on {device}",
            where="stream",
            fix="Leave the graph on the CPU and pass device='cuda'; blocks of it are copied as they are needed.",
        )


def require_places(model: nn.Module, hops: Sequence[Topology], device: torch.device) -> None:
    """Refuse a model that lies elsewhere than where it computes, and edges that do not lie on the host.

    Raises:
        InputError: so it is.
    """
    for topology in hops:
        require_on_host(topology.device, "edges")
    for name, tensor in tensors_of(model).items():
        # What has no memory yet, or no values, is refused elsewhere.
        if tensor.device.type in ("cpu", "cuda") and tensor.device != device:
            raise InputError(
                "a model that is streamed must lie where it computes",
                value=f"its parameter '{name}' is on {tensor.device}, the device is {device}",
                where=type(model).__name__,
                fix=f"Move it with .to('{device}') before its optimizer is made, or pass another device.",
            )
