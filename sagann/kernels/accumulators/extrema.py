"""Max and min, which keep the edge that attains them."""

from __future__ import annotations

from sagann.kernels.accumulators.record import Accumulator
from sagann.kernels.edge.reductions import reduction
from sagann.kernels.gather import naive

MAX = Accumulator(name="max", reduction=reduction("max"), gather=naive.gather_max, keeps=(1,))
MIN = Accumulator(name="min", reduction=reduction("min"), gather=naive.gather_min, keeps=(1,))
