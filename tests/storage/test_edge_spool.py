"""What the spool learns of the edges does not hang on how they are cut into chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sagann.storage.edge_source import EdgeChunk, EdgeColumn
from sagann.storage.edge_spool import EdgeSpool


@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3], [0, 0, 2, 4]])
def test_dropped_self_loops_count_as_vertices_in_any_chunk(tmp_path: Path, cuts: list[int]) -> None:
    src, dst, types = (np.array(ids) for ids in ([0, 1, 9, 9], [1, 0, 9, 9], [0, 1, 4, 0]))
    spool = EdgeSpool(
        tmp_path / "spool",
        columns={"type": EdgeColumn(dtype="int32")},
        num_vertices=None,
        drop_self_loops=True,
        mirrors=False,
        block_edges=8,
    )
    parts = (np.split(column, cuts) for column in (src, dst, types.astype(np.int32)))
    for part_src, part_dst, part_types in zip(*parts, strict=True):
        spool.add(EdgeChunk(src=part_src, dst=part_dst, data={"type": part_types}, file="made", first_row=0))
    spool.finish(10)
    assert (spool.largest_id, spool.largest_type, spool.num_edges) == (9, 4, 2)
