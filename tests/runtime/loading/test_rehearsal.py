"""Rehearsed batches are those of the epoch, and what is measured of them is theirs alone."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sagann.graph import Graph
from sagann.runtime.loading import MiniBatches
from sagann.runtime.loading.rehearsal import RehearsedBatch, Stopwatch, rehearsed
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered import TieredFeatures
from tests.graphs import labelled_graph
from tests.stores import ComputedRows
from tests.threads import left_threads


class SlowRows(ComputedRows):
    """Rows that are waited for, as of a disk."""

    def rows(self, ids: Tensor) -> Tensor:
        self.thread = threading.current_thread().name
        self.num_threads = torch.get_num_threads()
        time.sleep(0.1)
        return super().rows(ids)


def of(graph: Graph | None = None, **options: Any) -> MiniBatches:
    return MiniBatches(labelled_graph() if graph is None else graph, fanouts=[3, 2], batch_size=4, **options)


def made(minibatches: MiniBatches, *numbers: int, epoch: int = 1) -> list[RehearsedBatch]:
    with closing(rehearsed(minibatches, epoch, numbers)) as batches:
        return list(batches)


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_rehearsed_batch_is_one_of_the_epoch(ahead: int) -> None:
    minibatches = of(ahead=ahead, threads=2)
    with minibatches.batches(1) as pipeline:
        expected = list(pipeline)
        counters = pipeline.counters
    found = made(minibatches, 4, 0, 2)
    assert [each.number for each in found] == [4, 0, 2]
    for each in found:
        assert torch.equal(each.batch.src_ids, expected[each.number].src_ids)
        assert torch.equal(each.batch.features, expected[each.number].features)
        assert [(stage.name, stage.threads) for stage in each.stages] == [("sample", 2), ("load", 2)]
    everything = made(minibatches, *range(5))
    for at, counted in enumerate(counters[:-1]):
        assert sum(each.stages[at].size.rows for each in everything) == counted.rows
        assert sum(each.stages[at].size.num_bytes for each in everything) == counted.num_bytes


def test_a_stage_works_where_it_does_in_the_pipeline() -> None:
    store = SlowRows(len(labelled_graph().splits["train"]), 5)
    graph = replace(labelled_graph(), features=store)
    made(of(graph), 0)
    assert store.thread.startswith("sagann-rehearsal")
    assert store.num_threads == 1
    made(of(graph, ahead=0), 0)
    assert store.thread == threading.current_thread().name
    # No thread is left behind, also where the batches are not all taken.
    with closing(rehearsed(of(graph), 1, range(5))) as batches:
        next(batches)
    assert not left_threads("sagann-rehearsal")


def test_waiting_is_told_from_work() -> None:
    store = SlowRows(len(labelled_graph().splits["train"]), 5)
    (found,) = made(of(replace(labelled_graph(), features=store)), 0)
    work = found.stages[1].work
    assert work.seconds >= 0.1
    assert work.cores < 0.5


def test_a_stopwatch_counts_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(seconds: float, core_s: float) -> float:
        times = iter([10.0, 10.0 + seconds])
        monkeypatch.setattr(time, "perf_counter", lambda: next(times))
        clock = iter([3.0, 3.0 + core_s])
        return Stopwatch(lambda: next(clock)).work().cores

    assert measured(2.0, 1.0) == 0.5
    assert measured(2.0, 0.0) == 0.01
    assert measured(2.0, 1000.0) == num_cores()
    assert measured(0.0, 0.0) == 1.0


def test_a_store_that_looks_ahead_is_told_of_the_batches() -> None:
    graph = labelled_graph()
    store = TieredFeatures(graph.features, hot="50%", cache="look-ahead")
    found = made(of(replace(graph, features=store)), 1, 0)
    assert [[stage.name for stage in each.stages] for each in found] == [["sample", "announce", "load"]] * 2
    assert isinstance(graph.features, Tensor)
    for each in found:
        assert torch.equal(each.batch.features, graph.features[each.batch.src_ids])


def test_an_error_names_stage_and_batch() -> None:
    class Broken(ComputedRows):
        def rows(self, ids: Tensor) -> Tensor:
            raise OSError("the disk is gone")

    graph = labelled_graph()
    with pytest.raises(OSError, match="the disk is gone") as caught:
        made(of(replace(graph, features=Broken(graph.num_vertices, 5))), 3)
    assert caught.value.__notes__ == ["Raised by stage 'load' of epoch 1, batch 3."]
