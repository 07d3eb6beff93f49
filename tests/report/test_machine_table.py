from __future__ import annotations

from dataclasses import replace

from sagann.report.machine_table import machine_table
from tests.plan.machines import ROUND


def test_a_device_has_its_copies_in_the_table() -> None:
    between = replace(ROUND, host_to_device_bytes=50 * 2.0**30, device_to_host_bytes=45 * 2.0**30)
    cells = {str(cell) for column in machine_table(between).columns for cell in column.cells}
    assert "50.0 GiB/s to it, 45.0 GiB/s from it" in cells
    without = {str(cell) for column in machine_table(ROUND).columns for cell in column.cells}
    assert cells - without == {"copies to and from the device", "50.0 GiB/s to it, 45.0 GiB/s from it"}
