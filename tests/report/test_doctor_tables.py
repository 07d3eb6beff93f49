from __future__ import annotations

import pytest
from rich.table import Table

from sagann.free_space import Memory
from sagann.report import doctor_tables
from sagann.report.probes import Finding


def rows(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_tables, "core_versions", lambda: {"torch": "2.9", "numba": None})
    assert rows(doctor_tables.versions_table())[2:] == [
        ("torch", "2.9"),
        ("numba", "missing: pip install sagann"),
    ]
    found = {"plots": {"matplotlib": "3.10"}, "peers": {"a": "1", "b": None}}
    monkeypatch.setattr(doctor_tables, "extras", lambda: found)
    assert rows(doctor_tables.extras_table()) == [
        ("plots", "ok", "matplotlib 3.10"),
        ("peers", "-", "missing b; pip install 'sagann[peers]'"),
    ]


def test_a_limit_of_memory_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=2**31, available_bytes=2**30, limit_bytes=2**29, limit_used_bytes=2**28)
    monkeypatch.setattr(doctor_tables, "memory", lambda: found)
    shown = dict(rows(doctor_tables.machine_table()))
    assert shown["memory"] == "2.0 GiB, of which 1.0 GiB are free"
    assert shown["memory limit (cgroup)"] == "512.0 MiB, of which 256.0 MiB are used"


def test_only_a_part_that_is_needed_fails() -> None:
    findings = [
        Finding(name="torch", ok=True, detail="fine"),
        Finding(name="kernels", ok=False, detail="bad"),
        Finding(name="CUDA", ok=False, detail="none"),
    ]
    assert [row[1] for row in rows(doctor_tables.findings_table(findings))] == ["ok", "failed", "-"]
