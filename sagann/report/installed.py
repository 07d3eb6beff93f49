"""Versions of the packages that sagann needs, and of its extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:[^;]*)(?:;.*extra == ['\"]([A-Za-z0-9_-]+)['\"])?")
# Extras for work on sagann itself.
_NOT_FOR_USERS = ("dev",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """An extra of sagann."""

    name: str
    "Name of the extra, as in pip install 'sagann[NAME]'."
    packages: Mapping[str, str | None]
    "Version of each package; None where the package is not installed."

    @property
    def installed(self) -> bool:
        """Whether every package is installed."""
        return None not in self.packages.values()

    @property
    def command(self) -> str:
        """The command that installs the extra."""
        return f"pip install 'sagann[{self.name}]'"


def core_versions() -> dict[str, str | None]:
    """Version of each package that sagann always needs; None where the package is missing."""
    return {name: _version(name) for name, extra in _requirements() if extra is None}


def extras() -> list[Extra]:
    """The extras for users."""
    packages: dict[str, dict[str, str | None]] = {}
    for name, extra in _requirements():
        if extra is not None and extra not in _NOT_FOR_USERS:
            packages.setdefault(extra, {})[name] = _version(name)
    return [Extra(name=name, packages=found) for name, found in packages.items()]


def _requirements() -> list[tuple[str, str | None]]:
    try:
        listed = metadata.requires("sagann") or []
    except metadata.PackageNotFoundError:
        # sagann runs from its source folder, without an installation.
        return []
    matches = [_REQUIREMENT.match(line) for line in listed]
    return [(match[1], match[2]) for match in matches if match]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
