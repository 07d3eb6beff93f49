"""``sagann doctor`` and ``sagann machine``. Their work is imported when they run: a part of it may be broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sagann.cli.failure import OUR_FAULT
from sagann.cli.options import Shared, command, option, switch


@command()
def doctor(shared: Shared) -> int:
    """Say what is installed, what this machine offers, and which parts of sagann work here.

    Exit code 0 when everything that sagann needs works.
    """
    with shared.loading():
        from sagann.report import doctor_tables as tables
        from sagann.report.probes import run_probes

    terminal = shared.terminal()
    for table in (tables.versions_table(), tables.machine_table(), tables.extras_table()):
        terminal.show(table)
    terminal.say("Trying each part ...")
    findings = run_probes()
    terminal.show(tables.findings_table(findings))
    broken = [found.name for found in findings if found.core and not found.ok]
    broken += [name for name, version in tables.core_versions().items() if version is None]
    if broken:
        terminal.show(f"sagann does not work here: {', '.join(broken)}.")
        return OUR_FAULT
    terminal.show("sagann works here.")
    return 0


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
    with shared.loading():
        import torch

        from sagann.cli.result_file import check_target
        from sagann.report.doctor_tables import rates_table
        from sagann.runtime.forecasting.probe import probe
        from sagann.runtime.places import device_named
        from sagann.storage.folder import write_whole

    terminal = shared.terminal()
    if out is not None:
        check_target(out, (".toml",), overwrite=overwrite)
    computes = device_named(device)
    what = f"{torch.get_num_threads()} threads" if computes.type == "cpu" else str(computes)
    terminal.say(f"Measuring on {what}, and the disk of {disk.absolute()} ...")
    found = probe(disk, computes)
    terminal.show(rates_table(found))
    if out is not None:
        write_whole(out, found.to_toml().encode())
        terminal.show(f"Rates written to {out}")
