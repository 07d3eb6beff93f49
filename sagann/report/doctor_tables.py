"""The tables of ``sagann doctor``: versions, machine, extras, and the parts that were tried."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from sagann import __version__
from sagann.byte_size import format_bytes
from sagann.free_space import free_disk_bytes, memory
from sagann.report.probes import Finding
from sagann.report.terminal import facts_table
from sagann.runtime.processor import num_cores

_OK, _MISSING, _FAILED = Text("ok", "green"), Text("-", "yellow"), Text("failed", "bold red")


def versions_table() -> Table:
    """Versions of sagann, of Python and of the packages that sagann needs."""
    missing = Text("missing: pip install sagann", "bold red")
    python = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    packages = ((name, version or missing) for name, version in core_versions().items())
    return facts_table("Versions", [("sagann", __version__), ("python", python), *packages])


def machine_table() -> Table:
    """Cores, memory and disk that this process may use."""
    found, here, limit = memory(), Path.cwd(), "none"
    if found.limit_bytes is not None:
        limit = f"{format_bytes(found.limit_bytes)}, of which {format_bytes(found.limit_used_bytes)} are used"
    free = f"{format_bytes(found.total_bytes)}, of which {format_bytes(found.available_bytes)} are free"
    disk = f"{format_bytes(free_disk_bytes(here))} free in {here}"
    rows = (("cores", str(num_cores())), ("memory", free), ("memory limit (cgroup)", limit), ("disk", disk))
    return facts_table("Machine", rows)


def extras_table() -> Table:
    """The extras of sagann, with their packages or the command that installs them."""
    rows = []
    for extra, packages in extras().items():
        missing = [name for name, version in packages.items() if version is None]
        there = ", ".join(f"{name} {version}" for name, version in packages.items())
        detail = f"missing {', '.join(missing)}; pip install 'sagann[{extra}]'" if missing else there
        rows.append((extra, _MISSING if missing else _OK, detail))
    return facts_table("Extras", rows)


def findings_table(findings: Sequence[Finding]) -> Table:
    """The parts of sagann that were tried, and whether each works."""
    states = (_OK if found.ok else _FAILED if found.core else _MISSING for found in findings)
    return facts_table(
        "Parts", [(each.name, state, each.detail) for each, state in zip(findings, states, strict=True)]
    )


_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:[^;]*)(?:;.*extra == ['\"]([A-Za-z0-9_-]+)['\"])?")


def core_versions() -> dict[str, str | None]:
    """Version of each package that sagann always needs; None where the package is missing."""
    return _versions().get(None, {})


def extras() -> dict[str, dict[str, str | None]]:
    """Versions of the packages of each extra for users; None for a package that is not installed."""
    # The extra 'dev' is for work on sagann itself.
    return {extra: versions for extra, versions in _versions().items() if extra not in (None, "dev")}


def _versions() -> dict[Any, dict[str, str | None]]:
    """By extra, or None for what is always needed, the version of each package, or None where it is missing."""
    found: dict[Any, dict[str, str | None]] = {}
    try:
        requirements = metadata.requires("sagann") or []
    except metadata.PackageNotFoundError:
        # sagann runs from its source folder, without an installation.
        requirements = []
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        try:
            version = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            version = None
        found.setdefault(match[2], {})[match[1]] = version
    return found
