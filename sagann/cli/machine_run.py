"""The work of ``sagann machine``: the rates of this machine, shown and written."""

from __future__ import annotations

from pathlib import Path

import torch

from sagann.cli.options import Shared
from sagann.cli.result_file import check_target
from sagann.report.machine_table import machine_table
from sagann.report.terminal import Terminal
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.places import device_named
from sagann.storage.durable import write_whole


def machine_run(*, out: Path | None, disk: Path, device: str, overwrite: bool, shared: Shared) -> None:
    """Measure this machine, print the rates, and write them.

    Args:
        out: the file, or none.
        disk: a folder on the disk that is measured.
        device: what computes.
        overwrite: whether a file that stands there is replaced.
        shared: options that every command has.
    """
    terminal = Terminal(quiet=shared.quiet)
    if out is not None:
        check_target(out, (".toml",), overwrite=overwrite)
    computes = device_named(device)
    what = f"{torch.get_num_threads()} threads" if computes.type == "cpu" else str(computes)
    terminal.say(f"Measuring on {what}, and the disk of {disk.absolute()} ...")
    machine = probe(disk, computes)
    terminal.show(machine_table(machine))
    if out is not None:
        write_whole(out, machine.to_toml().encode())
        terminal.show(f"Rates written to {out}")
