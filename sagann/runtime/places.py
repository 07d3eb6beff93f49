"""Places: a streamed graph lies on the host, and its model on the device that computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sagann.errors import InputError, first_line
from sagann.graph.topology import Topology


def device_named(
    device: torch.device | str, *, where: str = "stream.device", instead: str = "'cpu'"
) -> torch.device:
    """The device that computes, with its index, from 'cpu', 'cuda' or 'cuda:N'; for errors, ``where`` names the setting, and ``instead`` what
    it takes where there is no CUDA device.

    Raises:
        InputError: there is no such device, or it is neither a CPU nor a CUDA device.
    """

    def refused(why: str) -> InputError:
        hint = f"Pass {instead}, or install a CUDA build of torch and its driver, and pass 'cuda' or 'cuda:N'."
        return InputError(f"no such device: {str(device)!r}; {why} (in {where})", hint=hint)

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise refused(f"PyTorch says: {first_line(error)}") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise refused("models run on the CPU and on CUDA devices")
    count = num_cuda_devices()
    # Read from the name: torch.device keeps an index in 8 bits, and reads 'cuda:256' as 'cuda:0'.
    _, _, index = (device if isinstance(device, str) else str(found)).partition(":")
    if int(index or 0) >= count:
        raise refused(f"PyTorch sees {count} CUDA devices")
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


def devices_named(
    names: torch.device | str, *, where: str = "stream.device", instead: str = "'cpu'"
) -> tuple[torch.device, ...]:
    """The devices that compute, from a name as of :func:`device_named`, or several with commas as 'cuda:0,cuda:1'.

    Raises:
        InputError: one of them does not exist, is named twice, or is no CUDA device beside others.
    """
    found = tuple(device_named(each, where=where, instead=instead) for each in str(names).split(","))
    if len(found) > 1 and (len(set(found)) < len(found) or any(each.type != "cuda" for each in found)):
        raise InputError(
            f"several devices are CUDA devices, each named once: '{names}' (in {where})",
            hint="Name them by their numbers, as 'cuda:0,cuda:1'.",
        )
    return found


def num_cuda_devices() -> int:
    """Number of CUDA devices that PyTorch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_on_host(device: torch.device, what: str) -> None:
    """Refuse a part of a streamed graph, with a name for the error, that lies on a device."""
    if device.type != "cpu":
        raise InputError(
            f"a graph that is streamed must lie on the host: its {what} are on {device} (in stream)",
            hint="Leave the graph on the CPU and pass device='cuda'; blocks of it are copied as they are needed.",
        )


def require_places(model: nn.Module, hops: Sequence[Topology], device: torch.device) -> None:
    """Refuse a model that lies elsewhere than on the device that computes, and edges that do not lie on the host."""
    # The import loads PyTorch's tracer, and naming a device must stay fast.
    from sagann.compiler.trace import tensors_of

    for topology in hops:
        require_on_host(topology.device, "edges")
    for name, tensor in tensors_of(model).items():
        # The capture of the model refuses tensors without memory or values.
        if tensor.device.type in ("cpu", "cuda") and tensor.device != device:
            raise InputError(
                f"a model that is streamed must lie where it computes: its parameter '{name}' is on "
                f"{tensor.device}, the device is {device} (in {type(model).__name__})",
                hint=f"Move it with .to('{device}') before its optimizer is made, or pass another device.",
            )
