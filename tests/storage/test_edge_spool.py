"""Spilled edges come back as they were written; what the spool learns does not hang on how they are cut into chunks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sagann.storage.edge_source import EdgeChunk, EdgeColumn
from sagann.storage.edge_spool import EdgeRun, EdgeSpool

FORMS = (
    EdgeColumn(dtype="int32"),
    EdgeColumn(dtype="float16", row_shape=(2,)),
    EdgeColumn(dtype="int8", row_shape=(0,)),
)


def columns(first: int, stop: int) -> list[np.ndarray]:
    ids = np.arange(first, stop)
    return [ids, np.stack([ids, -ids], axis=1), np.empty((len(ids), 0))]


def test_blocks_and_the_whole(tmp_path: Path) -> None:
    run = EdgeRun(tmp_path / "run", FORMS)
    assert [column.shape for column in run.load()] == [(0,), (0, 2), (0, 0)]
    for first, stop in ((0, 5), (5, 5), (5, 20_000)):
        run.append(columns(first, stop))
    assert run.num_edges == 20_000
    assert [len(block[0]) for block in run.blocks()] == [5, 19_995]
    for found, form, expected in zip(run.load(), FORMS, columns(0, 20_000), strict=True):
        assert np.array_equal(found, expected.astype(form.dtype))
    run.delete()
    assert not (tmp_path / "run").exists()


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    run = EdgeRun(tmp_path / "run", FORMS[:1])
    run.append([np.arange(100)])
    run.close()
    os.truncate(tmp_path / "run", 399)
    with pytest.raises(OSError, match="ends early"):
        run.load()


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
