"""Machines of published experiments, as files of ``sagann machine``: processors, accelerators and the links between them.

A file states the source of every figure: a table of the paper, a data sheet, or an assumption. Rates are effective ones; a data sheet's peak
stands beside them. Nothing of them was measured here. ``sagann machine --out FILE`` describes the machine that one has.
"""

from __future__ import annotations

from importlib.resources import files

from sagann.errors import InputError
from sagann.plan.machine import Machine

NAMES = ("epyc-7763-a5000", "epyc-7763-u250", "xeon-8163-v100", "xeon-e5-2690-p100", "96-vcpu-t4", "p100x8", "h100")
"""Names of the machines: tables II and V of HyScale-GNN, the server of NGra and NeuGraph, and the device by whose rates epochs that CUDA devices
stream are cut."""


def published_machine(name: str) -> Machine:
    """A machine of a published experiment, by one of :data:`NAMES`.

    Raises:
        InputError: there is no machine of that name.
    """
    if name not in NAMES:
        raise InputError(
            f"there is no published machine of that name: '{name}' (in sagann.machines)",
            hint=f"Name one of {', '.join(NAMES)}.",
        )
    return Machine.from_toml((files(__name__) / f"{name}.toml").read_text(), where=f"sagann/machines/{name}.toml")
