"""Intervals of a worker's part: own vertices and the halo are apart, and the rows of every interval that others need are counted."""

from __future__ import annotations

from sagann.nn import GCN
from tests.graphs import labelled_graph
from tests.parts import cut_all

GRAPH = GCN.prepare(labelled_graph(200, 900))


def test_sources_ascend_by_their_ids_in_the_graph() -> None:
    for part, intervals in cut_all(GRAPH, (2, 3, 2)):
        ids = [*range(part.vertices.start, part.vertices.stop), *part.topology.part.halo.tolist()]
        in_order = [ids[at] for number in intervals.sources for at in range(*intervals.bounds[number : number + 2])]
        assert in_order == sorted(ids)


def test_pieces_have_at_least_a_row_and_no_more_rows_than_there_are() -> None:
    ((_, intervals), _) = cut_all(GRAPH, (2, 2), piece_bytes=64)
    assert [intervals.piece_rows(row_bytes) for row_bytes in (1, 16, 1000)] == [64, 4, 1]
    most = max(sum(intervals.sent.values()), intervals.bounds[-1] - intervals.num_vertices)
    assert intervals.most_in_a_piece(16) == 4
    ((_, roomy), _) = cut_all(GRAPH, (2, 2), piece_bytes=1 << 20)
    assert roomy.most_in_a_piece(16) == most
