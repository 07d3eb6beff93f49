"""The processor as a backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sagann.kernels.memory import SMALLEST_BYTES, Pool
from sagann.plan.steps import Block
from sagann.runtime.blocks.backend import CpuBackend
from sagann.runtime.blocks.host import RamHost
from sagann.runtime.blocks.spill import DiskHost


def test_memory_of_another_model_s_blocks_is_given_back_where_a_budget_holds_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(most_times=1)
    for module in ("host", "backend"):
        monkeypatch.setattr(f"sagann.runtime.blocks.{module}.HOST_POOL", pool)
    backend = CpuBackend()
    in_memory = backend.new_host(None)
    assert isinstance(in_memory, RamHost)
    in_memory.put(Block("value", "x", 0), {"": torch.ones(SMALLEST_BYTES)})
    in_memory.close()
    pool.shrink(1 << 40)
    assert pool._free_bytes >= 4 * SMALLEST_BYTES
    assert isinstance(backend.new_host(tmp_path), DiskHost)
    assert pool._free_bytes == 0
