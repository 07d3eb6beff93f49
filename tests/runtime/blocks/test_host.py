"""Hosts: rows picked from memory and from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sagann.graph.rows import pick_rows
from sagann.kernels.memory import SMALLEST_BYTES, Pool
from sagann.kernels.packed import Layout
from sagann.plan.steps import Block
from sagann.runtime.blocks.backend import Backend
from sagann.runtime.blocks.host import Host, RamHost
from sagann.runtime.blocks.spill import DiskHost
from sagann.runtime.device.pinned import PinnedPool
from tests.runtime.device.late_streams import LateStreams

AT = Block("value", "x", 0)
ROWS = {
    "none": [],
    "all": list(range(500)),
    "first and last": [0, 499],
    "runs": [3, 4, 5, 200, 201, 399],
    "every third": list(range(0, 500, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("name", ROWS)
def test_hosts_pick_the_rows_asked_for(
    dtype: torch.dtype, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A piece of a file has a few rows only.
    monkeypatch.setattr("sagann.storage.scattered.GAP_BYTES", 4096)
    monkeypatch.setattr("sagann.storage.scattered.READ_BYTES", 3 * 4096)
    rows = torch.tensor(ROWS[name], dtype=torch.int32)
    wide = torch.arange(500 * 300).reshape(500, 3, 100).to(dtype)
    tensors = {"wide": wide, "strided": wide[:, :, ::2], "scalar": wide[:, 0, 1], "empty": wide[:, :, :0]}
    hosts: list[Host] = [RamHost(), DiskHost(tmp_path)]
    for host in hosts:
        host.put(AT, tensors)
        found = host.pick(AT, rows).views()
        assert found.keys() == tensors.keys()
        for part, tensor in tensors.items():
            assert found[part].dtype == dtype
            assert torch.equal(found[part], tensor[rows.long()]), part


@pytest.mark.parametrize("parts", [[(0, 500)], [(0, 1), (1, 499), (499, 500)], [(400, 500), (7, 400), (0, 7)]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_write_and_read_blocks_where_they_lie(
    dtype: torch.dtype, parts: list[tuple[int, int]], tmp_path: Path
) -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=1 << 20)
    hosts: list[Host] = [
        RamHost(),
        DiskHost(tmp_path),
        RamHost(pool),
    ]
    for host in hosts:
        # What is put again replaces the rows that were there, and leaves the neighbours alone.
        for wide in (torch.arange(500 * 12).reshape(500, 3, 4).to(dtype), torch.randn(500, 3, 4).to(dtype)):
            room = host.room(AT, Layout({"": wide}))[""]
            for first, last in parts:
                room[first:last] = wide[first:last]
                host.put(AT._replace(interval=first + 1), {"": wide[first]})
            assert torch.equal(host.get(AT).views()[""], wide)
            assert torch.equal(host.view(AT)[""], wide)
        host.put(AT, {"": wide + wide})
        assert torch.equal(host.view(AT)[""], wide + wide)
        host.close()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_rows_of_arrays_that_are_not_contiguous(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).T
    into = torch.empty(2, 3, dtype=tensor.dtype)
    assert pick_rows(tensor, torch.tensor([1, 3], dtype=dtype), into).tolist() == [[1, 5, 9], [3, 7, 11]]


def test_rows_that_learn_are_copied_without_their_gradient() -> None:
    learned = torch.arange(12.0).reshape(3, 4).requires_grad_()
    for tensor in (learned, learned.T):
        rows = pick_rows(tensor, torch.tensor([2, 0]), torch.empty(2, tensor.shape[1]))
        assert torch.equal(rows, tensor[[2, 0]])
        assert not rows.requires_grad


def test_memory_of_another_model_s_blocks_is_given_back_where_a_budget_holds_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(most_times=1)
    for module in ("host", "backend"):
        monkeypatch.setattr(f"sagann.runtime.blocks.{module}.HOST_POOL", pool)
    backend = Backend()
    in_memory = backend.new_host(None)
    assert isinstance(in_memory, RamHost)
    in_memory.put(Block("value", "x", 0), {"": torch.ones(SMALLEST_BYTES)})
    in_memory.close()
    pool.shrink(1 << 40)
    assert pool._free_bytes >= 4 * SMALLEST_BYTES
    assert isinstance(backend.new_host(tmp_path), DiskHost)
    assert pool._free_bytes == 0
