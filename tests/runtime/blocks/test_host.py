"""Hosts: rows picked from memory and from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.kernels.memory import SMALLEST_BYTES, Pool
from sagann.kernels.packed import Layout
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import ALL, Block
from sagann.runtime.backend import Backend
from sagann.runtime.blocks.host import DiskHost, Host, RamHost
from sagann.runtime.device.streams import PinnedPool
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


def test_pieces_lie_side_by_side_in_their_undivided_block(tmp_path: Path) -> None:
    part = PartIntervals.of_graph((0, 7, 7, 50))
    part = replace(part, undivided=frozenset([("value", "x")]), in_pieces=True)
    wide = {"one": torch.randn(50, 3, 5), "other": torch.randn(50).bfloat16()}
    hosts: list[Host] = [RamHost(), DiskHost(tmp_path), RamHost(PinnedPool(LateStreams(), most_bytes=1 << 20))]
    for host in hosts:
        host.part = part
        for interval in (2, 0, 1):
            rows = slice(part.bounds[interval], part.bounds[interval + 1])
            pieces = {name: tensor[rows] for name, tensor in wide.items()}
            host.put(AT._replace(interval=interval), pieces)
            views = [region.views() for region in host.regions(AT._replace(interval=interval))]
            found = {name: view for each in views for name, view in each.items()}
            assert all(torch.equal(found[name], piece) for name, piece in pieces.items())
            assert host.is_at_hand(AT._replace(interval=interval))
            # A block of another name lies by itself.
            host.put(AT._replace(name="y", interval=interval), {"": wide["one"]})
        (region,) = host.regions(AT._replace(interval=ALL))
        assert all(torch.equal(view, wide[name]) for name, view in region.views().items())
        host.close()


def test_memory_of_another_model_s_blocks_is_given_back_where_a_budget_holds_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(most_times=1)
    for module in ("blocks.host", "backend"):
        monkeypatch.setattr(f"sagann.runtime.{module}.HOST_POOL", pool)
    backend = Backend()
    in_memory = backend.new_host(None)
    assert isinstance(in_memory, RamHost)
    in_memory.put(Block("value", "x", 0), {"": torch.ones(SMALLEST_BYTES)})
    in_memory.close()
    pool.shrink(1 << 40)
    assert pool._free_bytes >= 4 * SMALLEST_BYTES
    assert isinstance(backend.new_host(tmp_path), DiskHost)
    assert pool._free_bytes == 0
