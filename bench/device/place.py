"""Where a device was measured: its name, its host, and versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch

from sagann.runtime.processor import num_cores, processor_name

PACKAGES = ("triton", "torch_geometric", "pyg-lib", "torch-sparse")
"Packages whose versions the page states, where they are installed."


def device_name(device: torch.device) -> str:
    """The device's name for tables."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"


def where(device: torch.device) -> str:
    """The device, the host, and versions."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return (
        f"{device_name(device)}, {num_cores()} cores of {processor_name()}; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{', '.join(versions)}."
    )
