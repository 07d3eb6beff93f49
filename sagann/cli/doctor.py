"""``sagann doctor``. Nothing that could be broken is imported here: probes run in a process of their own."""

from __future__ import annotations

import platform
from pathlib import Path

from rich.table import Table
from rich.text import Text

from sagann import __version__
from sagann.byte_size import format_bytes
from sagann.cli.failure import OUR_FAULT
from sagann.cli.options import Shared, command
from sagann.free_space import free_disk_bytes, memory
from sagann.report.installed import core_versions, extras
from sagann.report.probes import Finding, run_probes
from sagann.runtime.processor import num_cores

_OK, _MISSING, _FAILED = Text("ok", "green"), Text("-", "yellow"), Text("failed", "bold red")


@command()
def doctor(shared: Shared) -> int:
    """Say what is installed, what this machine offers, and which parts of sagann work here.

    Exit code 0 when everything that sagann needs works.
    """
    terminal = shared.terminal()
    terminal.show(_versions())
    terminal.show(_machine())
    terminal.show(_extras())
    terminal.say("Trying each part ...")
    findings = list(run_probes())
    terminal.show(_findings(findings))
    broken = [found.name for found in findings if found.core and not found.ok]
    broken += [name for name, version in core_versions().items() if version is None]
    if broken:
        terminal.show(f"sagann does not work here: {', '.join(broken)}.")
        return OUR_FAULT
    terminal.show("sagann works here.")
    return 0


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", show_header=False)
    # What does not fit is wrapped, never cut off: somebody will copy it into a report.
    for column in table.columns:
        column.overflow = "fold"
    return table


def _versions() -> Table:
    table = _table("Versions", "name", "version")
    table.add_row("sagann", __version__)
    table.add_row("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, version in core_versions().items():
        table.add_row(name, version or Text("missing: pip install sagann", "bold red"))
    return table


def _machine() -> Table:
    found = memory()
    here = Path.cwd()
    table = _table("Machine", "what", "value")
    table.add_row("cores", str(num_cores()))
    table.add_row(
        "memory", f"{format_bytes(found.total_bytes)}, of which {format_bytes(found.available_bytes)} are free"
    )
    limit = "none"
    if found.limit_bytes is not None:
        limit = f"{format_bytes(found.limit_bytes)}, of which {format_bytes(found.limit_used_bytes)} are used"
    table.add_row("memory limit (cgroup)", limit)
    table.add_row("disk", f"{format_bytes(free_disk_bytes(here))} free in {here}")
    return table


def _extras() -> Table:
    table = _table("Extras", "name", "state", "detail")
    for extra in extras():
        there = [f"{name} {version}" for name, version in extra.packages.items() if version]
        missing = [name for name, version in extra.packages.items() if not version]
        detail = ", ".join(there) if extra.installed else f"missing {', '.join(missing)}; {extra.command}"
        table.add_row(extra.name, _OK if extra.installed else _MISSING, detail)
    return table


def _findings(findings: list[Finding]) -> Table:
    table = _table("Parts", "name", "state", "detail")
    for found in findings:
        state = _OK if found.ok else _FAILED if found.core else _MISSING
        table.add_row(found.name, state, found.detail)
    return table
