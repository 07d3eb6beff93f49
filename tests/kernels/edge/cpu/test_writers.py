"""Lines that outputs add to CPU kernels. The kernels that run are compared in test_run.py."""

from __future__ import annotations

import pytest

from sagann.kernels.edge import cpu
from sagann.kernels.edge.cpu import emit, writers
from tests.kernels.edge import cases
from tests.kernels.edge.functions import gated


class Forgetful(writers.WRITERS["sum"]):  # type: ignore[misc]
    """Leaves row 3 unwritten."""

    def finish(self) -> list[str]:
        return ["if row != 3:", *("    " + line for line in super().finish())]


def test_a_row_that_a_kernel_leaves_unwritten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "WRITERS", {**writers.WRITERS, "sum": Forgetful})
    with pytest.raises(AssertionError, match="not close"):
        cases.assert_equals_naive(cpu.run, gated(5), cases.TOPOLOGIES["skewed"], rtol=1e-5)


@pytest.mark.parametrize("reduce", ["sum", "max", "softmax", "moments", "product"])
def test_a_kernel_that_continues_reads_the_rows_that_it_writes(reduce: str) -> None:
    source = cpu.source_of(cases.one_reduction(reduce), continued=True)
    loads = [line for line in source.splitlines() if "load_f8" in line and "(target_" in line]
    assert loads
    assert "(target_" not in "".join(
        line for line in cpu.source_of(cases.one_reduction(reduce)).splitlines() if "load_f8" in line
    )
