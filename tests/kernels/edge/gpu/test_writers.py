"""Lines that outputs add to Triton kernels. The kernels that run are compared in test_run.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")

from sagann.kernels.edge import gpu
from sagann.kernels.edge.gpu import emit, writers
from tests.kernels.edge import cases
from tests.kernels.edge.functions import gated


class Forgetful(writers.WRITERS["sum"]):  # type: ignore[misc]
    """Leaves row 3 unwritten."""

    def finish(self) -> list[str]:
        return ["if row != 3:", *("    " + line for line in super().finish())]


def test_a_row_that_a_kernel_leaves_unwritten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "WRITERS", {**writers.WRITERS, "sum": Forgetful})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with pytest.raises(AssertionError, match="not close"):
        cases.assert_equals_naive(gpu.run, gated(5), cases.TOPOLOGIES["skewed"], rtol=1e-5, device=device)
