"""``sagann machine``. Its work is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sagann.cli.options import Shared, command, option, switch


@command()
def machine(
    shared: Shared,
    out: Annotated[Path | None, option("File to write: .toml.", "FILE", default="none")] = None,
    disk: Annotated[Path, option("Folder whose disk is measured: where runs spill to.", "FOLDER")] = Path(),
    device: Annotated[str, option("Device that is measured.", "cpu|cuda|cuda:N")] = "cpu",
    overwrite: Annotated[bool, switch("--overwrite", "Replace a file that stands there.")] = False,
) -> None:
    """Measure this machine: how fast it computes, gathers over edges, copies, reads and writes.

    With --out, the rates are written as TOML. It takes a few seconds, and is best done while nothing else runs.

    Example: sagann machine --out machine.toml
    """
    import torch

    from sagann.cli.result_file import check_target
    from sagann.report.machine_table import machine_table
    from sagann.runtime.forecasting.probe import probe
    from sagann.runtime.places import device_named
    from sagann.storage.durable import write_whole

    terminal = shared.terminal()
    if out is not None:
        check_target(out, (".toml",), overwrite=overwrite)
    computes = device_named(device)
    what = f"{torch.get_num_threads()} threads" if computes.type == "cpu" else str(computes)
    terminal.say(f"Measuring on {what}, and the disk of {disk.absolute()} ...")
    found = probe(disk, computes)
    terminal.show(machine_table(found))
    if out is not None:
        write_whole(out, found.to_toml().encode())
        terminal.show(f"Rates written to {out}")
