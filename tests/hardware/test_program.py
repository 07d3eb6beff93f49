"""Programs of the aggregate kernel: what holds of every program, a slow twin, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sagann.errors import InputError
from sagann.hardware import KernelDesign, ScatterProgram, first_use, scatter_program
from sagann.hardware.design import HAZARD

pytest.importorskip("amaranth", reason="needs the extra 'hardware'")

from tests.hardware.simulated import Hop, random_hop


def program_of(hop: Hop, design: KernelDesign) -> ScatterProgram:
    program = hop.read(design).program
    assert program is not None
    return program


@st.composite
def hops(draw: st.DrawFn) -> tuple[Hop, KernelDesign]:
    design = KernelDesign(
        scatter_pes=draw(st.sampled_from([1, 2, 4, 8])),
        window_rows=draw(st.sampled_from([1, 2, 8, 32])),
        lanes=2,
        row_chunks=16,
        beat_chunks=1,
    )
    num_src, num_dst = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    num_edges, width = draw(st.integers(1, 120)), draw(st.integers(1, 32))
    seed = draw(st.integers(0, 1000))
    return random_hop(num_src, num_dst, num_edges, width, num_pes=design.scatter_pes, seed=seed), design


@settings(max_examples=60, deadline=None)
@given(hops())
def test_what_holds_of_every_program(drawn: tuple[Hop, KernelDesign]) -> None:
    hop, design = drawn
    chunks, n = design.chunks(hop.features.shape[1]), design.scatter_pes
    program = program_of(hop, design)
    expected = [
        [(hop.rows[edge], hop.coefficients[edge]) for edge in range(*hop.indptr[number : number + 2])]
        for number in range(hop.num_dst)
    ]
    found: list[list[tuple[int, float]]] = [[] for _ in expected]
    released, last_word, drained = 0, {}, []
    for word in range(program.num_words):
        if program.drains[word]:
            drained.append(program.destination[word, 0])
            group = range(drained[-1], min(drained[-1] + n, hop.num_dst))
            assert all(len(found[each]) == len(expected[each]) for each in group)
            distance = word - max(last_word[each] for each in group)
            is_last = sum(map(len, found)) == len(hop.rows)
            assert program.drains[word] == len(group)
            assert distance * chunks >= HAZARD or is_last
        else:
            edges = np.flatnonzero(program.destination[word] >= 0)
            destinations, rows = program.destination[word, edges], program.row[word, edges]
            assert len(edges) > 0
            assert np.array_equal(destinations % n, edges)
            assert ((rows >= released) & (rows < released + design.window_rows)).all()
            assert program.needs[word] == rows.max() + 1
            for destination, row, edge in zip(destinations, rows, edges, strict=True):
                assert program.is_first[word, edge] == (not found[destination])
                found[destination].append((row, program.coefficient[word, edge]))
                last_word[destination] = word
        assert program.releases[word] >= released
        released = program.releases[word]
    # Each destination's edges, in the order of their rows.
    assert found == expected
    assert drained == list(range(0, hop.num_dst, n))
    assert released == len(hop.features)


@settings(max_examples=30, deadline=None)
@given(hops())
def test_each_bank_takes_its_first_edge_whose_row_is_in_the_window(drawn: tuple[Hop, KernelDesign]) -> None:
    hop, design = drawn
    program = program_of(hop, design)
    destinations = np.repeat(np.arange(hop.num_dst), np.diff(hop.indptr))
    banks = [
        sorted((row, edge) for edge, row in enumerate(hop.rows) if destinations[edge] % design.scatter_pes == bank)
        for bank in range(design.scatter_pes)
    ]
    for word in np.flatnonzero(program.drains == 0):
        oldest = min(bank[0][0] for bank in banks if bank)
        for number, bank in enumerate(banks):
            if bank and bank[0][0] < oldest + design.window_rows:
                row, edge = bank.pop(0)
                assert program.row[word, number] == row
                assert program.destination[word, number] == destinations[edge]
            else:
                assert program.destination[word, number] == -1


def test_rows_come_in_the_order_of_first_use_dealt_to_destinations() -> None:
    indptr, sources = np.array([0, 2, 4, 6]), np.array([5, 3, 5, 7, 1, 5])
    # One neighbour of each of the first two destinations in turn, then those of the third.
    assert first_use(indptr, sources, 2).tolist() == [5, 3, 7, 1]
    assert first_use(indptr, sources, 1).tolist() == [5, 3, 7, 1]
    assert first_use(indptr, sources, 4).tolist() == [5, 1, 3, 7]


def test_a_hop_without_destinations_has_no_words() -> None:
    nothing = np.empty(0, dtype=np.int64)
    program = scatter_program(np.array([0]), nothing, nothing.astype(np.float32), KernelDesign(), chunks=1)
    assert program.num_words == 0


def test_dealt_edges_fill_words() -> None:
    design = KernelDesign(scatter_pes=8, window_rows=32)
    dealt, one_by_one = (program_of(random_hop(4000, 256, 2560, 100, num_pes=each), design) for each in (8, 1))
    # Of 2560 edges, at least 6.5 in a word.
    assert (dealt.drains == 0).sum() < 2560 / 6.5
    assert (one_by_one.drains == 0).sum() > (dealt.drains == 0).sum() / 0.8


def test_what_does_not_fit_is_refused() -> None:
    hop = random_hop(10, 10, 20, 70, num_pes=4)
    with pytest.raises(InputError, match=r"rows do not fit the kernel: 70 floats, and it takes 1 to 64 \("):
        hop.read(KernelDesign(scatter_pes=4, lanes=2))
    with pytest.raises(InputError, match=r"window_rows is 12, expected a power of 2"):
        KernelDesign(window_rows=12)
    with pytest.raises(InputError, match=r"lanes is 0, expected at least 1"):
        KernelDesign(lanes=0)
    with pytest.raises(InputError, match=r"beat_chunks is 4, and a row has at most 2 chunks"):
        KernelDesign(row_chunks=2)
