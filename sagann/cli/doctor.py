"""``sagann doctor``. Nothing that could be broken is imported: probes run in a process of their own."""

from __future__ import annotations

from sagann.cli.failure import OUR_FAULT
from sagann.cli.options import Shared, command


@command()
def doctor(shared: Shared) -> int:
    """Say what is installed, what this machine offers, and which parts of sagann work here.

    Exit code 0 when everything that sagann needs works.
    """
    from sagann.report.doctor_tables import extras_table, findings_table, machine_table, versions_table
    from sagann.report.installed import core_versions
    from sagann.report.probes import run_probes

    terminal = shared.terminal()
    for table in (versions_table(), machine_table(), extras_table()):
        terminal.show(table)
    terminal.say("Trying each part ...")
    findings = list(run_probes())
    terminal.show(findings_table(findings))
    broken = [found.name for found in findings if found.core and not found.ok]
    broken += [name for name, version in core_versions().items() if version is None]
    if broken:
        terminal.show(f"sagann does not work here: {', '.join(broken)}.")
        return OUR_FAULT
    terminal.show("sagann works here.")
    return 0
