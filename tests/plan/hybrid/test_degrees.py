"""Degree laws have the figures that they are made of."""

from __future__ import annotations

import random

import pytest

from sagann.errors import InputError
from sagann.plan.hybrid.degrees import log_normal_law, measured_law


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("mean", "top_share"), [(50.0, 0.05), (2.0, 0.8)])
def test_a_law_has_its_mean_and_its_top(mean: float, top_share: float, symmetric: bool) -> None:
    law = log_normal_law(num_vertices=1000, mean=mean, top_share=top_share, symmetric=symmetric)
    assert sum(each.share for each in law.classes) == pytest.approx(1)
    assert law.mean_out_degree == pytest.approx(mean)
    assert sum(each.share * each.in_degree for each in law.classes) == pytest.approx(mean)
    assert all(each.in_degree == each.out_degree for each in law.classes) is symmetric
    # The hundredth of the vertices with the most out-edges, the last class of them in part.
    left, edges = 0.01, 0.0
    for each in sorted(law.classes, key=lambda each: -each.out_degree):
        taken = min(left, each.share)
        edges += taken * each.out_degree
        left -= taken
    assert edges / mean == pytest.approx(top_share, rel=0.04)


@pytest.mark.parametrize(
    ("num_vertices", "mean", "top_share"), [(0, 5.0, 0.2), (9, 0.0, 0.2), (9, 5.0, 0.01), (9, 5.0, 1.0)]
)
def test_impossible_figures_are_refused(num_vertices: int, mean: float, top_share: float) -> None:
    with pytest.raises(InputError, match=r"a degree law has impossible figures: .* Give at least one vertex"):
        log_normal_law(num_vertices=num_vertices, mean=mean, top_share=top_share, symmetric=True)


def test_the_law_of_a_graph_keeps_its_means() -> None:
    generator = random.Random(1)
    ins = [generator.randrange(300) for _ in range(1000)]
    outs = [generator.randrange(20) for _ in range(1000)]
    law = measured_law(ins, outs)
    assert law.num_vertices == 1000
    assert len(law.classes) < 1000
    assert sum(each.share for each in law.classes) == pytest.approx(1)
    assert sum(each.share * each.in_degree for each in law.classes) == pytest.approx(sum(ins) / 1000)
    assert law.mean_out_degree == pytest.approx(sum(outs) / 1000)
