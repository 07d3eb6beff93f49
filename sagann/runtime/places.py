"""Places: a graph that is streamed lies on the host, and the model on the device that computes.

Devices are named for runs in memory too, which no compiler is needed for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sagann.errors import InputError, first_line
from sagann.graph.topology import Topology


def device_named(
    device: torch.device | str, *, what: str = "no such device to stream to", where: str = "stream.device"
) -> torch.device:
    """The device that computes, with its index.

    Args:
        device: 'cpu', 'cuda' or 'cuda:N'.
        what: the error's first words.
        where: whose device it is, for the error.
    Raises:
        InputError: there is none of that name, or it is neither a CPU nor a CUDA device.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _no_device(what, device, f"PyTorch says: {first_line(error)}", where) from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise _no_device(what, device, "models run on the CPU and on CUDA devices", where)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # Read from the name: torch.device keeps an index in 8 bits, and takes 'cuda:256' for 'cuda:0'.
    _, _, index = (device if isinstance(device, str) else str(found)).partition(":")
    if int(index or 0) >= count:
        raise _no_device(what, device, f"PyTorch sees {count} CUDA devices", where)
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


def _no_device(what: str, device: object, why: str, where: str) -> InputError:
    return InputError(
        what,
        value=f"{str(device)!r}; {why}",
        where=where,
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
    # Imported here: it loads PyTorch's tracer, for which nobody who names a device should wait.
    from sagann.compiler.trace import tensors_of

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
