"""Metrics of links equal those counted link by link in plain Python, with many equal scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from sagann.errors import InputError
from sagann.graph import Topology
from sagann.train import filtered_ranks, link_metrics, link_ranks, rank_metrics


def naive_rank(true: float, others: list[float]) -> float:
    """The mean of the best and the worst place of ``true``, where equal scores may stand in any order."""
    best = 1 + sum(score > true for score in others)
    worst = 1 + sum(score >= true for score in others)
    return (best + worst) / 2


def area_by_ranks(positive: list[float], negative: list[float]) -> float:
    """The area under the curve by Mann and Whitney's statistic: each score has the mean of the ranks of its equals."""
    scores = sorted(positive + negative)
    mean_rank = {
        score: sum(at + 1 for at, other in enumerate(scores) if other == score) / scores.count(score)
        for score in set(scores)
    }
    n, m = len(positive), len(negative)
    return (sum(mean_rank[score] for score in positive) - n * (n + 1) / 2) / (n * m)


def drawn(*shape: int, seed: int) -> Tensor:
    """Few distinct scores, so that many are equal."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)) / 2


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**20))
def test_metrics_equal_those_counted_by_hand(num_links: int, negatives: int, seed: int) -> None:
    positive, negative = drawn(num_links, seed=seed), drawn(num_links, negatives, seed=seed + 1)
    ranks = [naive_rank(true, others) for true, others in zip(positive.tolist(), negative.tolist(), strict=True)]
    found = link_ranks(positive, negative)
    assert found.dtype == torch.float64
    assert found.tolist() == ranks
    expected = {
        "mrr": sum(1 / rank for rank in ranks) / num_links,
        "hits_1": sum(rank <= 1 for rank in ranks) / num_links,
        "hits_4": sum(rank <= 4 for rank in ranks) / num_links,
        "roc_auc": area_by_ranks(positive.tolist(), negative.flatten().tolist()),
    }
    assert link_metrics(positive, negative, hits=(1, 4)) == pytest.approx(expected, abs=1e-12)


def test_metrics_without_links_or_negatives_are_left_out() -> None:
    assert link_metrics(torch.ones(0), torch.ones(0, 5)) == {}
    assert link_metrics(torch.ones(3), torch.ones(3, 0)) == {}
    assert rank_metrics(torch.ones(0)) == {}


def test_ranks_of_slices_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    positive, negative = drawn(40, seed=0), drawn(40, 13, seed=1)
    whole = link_ranks(positive, negative)
    parts = [link_ranks(positive[at], negative[at]) for at in (slice(0, 17), slice(17, 40))]
    assert torch.cat(parts).equal(whole)
    monkeypatch.setattr("sagann.graph.checks.CHECKED_AT_ONCE", 13 * 3)
    assert link_ranks(positive, negative).equal(whole)


def test_scores_of_narrow_types_are_compared_exactly() -> None:
    # In half precision 2049 would be 2048; sums of ones over many candidates must not be.
    ranks = link_ranks(torch.zeros(1, dtype=torch.float16), torch.ones(1, 5001, dtype=torch.float16))
    assert ranks.tolist() == [5002.0]


Triple = tuple[int, int, int]


def naive_filtered(scores: Tensor, triples: list[Triple], known: set[Triple], replaced: str) -> list[float]:
    ranks = []
    for row, triple in zip(scores.tolist(), triples, strict=True):
        at = 2 if replaced == "tail" else 0
        others = []
        for vertex, score in enumerate(row):
            candidate = (*triple[:at], vertex, *triple[at + 1 :])
            if vertex != triple[at] and candidate not in known:
                others.append(score)
        ranks.append(naive_rank(row[triple[at]], others))
    return ranks


def test_filtered_ranks_of_integers() -> None:
    known = Topology.from_coo(src=torch.tensor([0, 0]), dst=torch.tensor([1, 2]), num_src=4)
    scores = torch.tensor([[1, 5, 9, 7]])
    found = filtered_ranks(scores, known, head=torch.tensor([0]), tail=torch.tensor([1]))
    assert found.tolist() == [2.0]


@given(
    st.integers(1, 8), st.integers(0, 40), st.sampled_from(["head", "tail"]), st.booleans(), st.integers(0, 2**20)
)
def test_filtered_ranks_equal_those_counted_by_hand(
    num_vertices: int, num_edges: int, replaced: Any, has_types: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # With repeated triples, loops, and triples to rank that are not known.
    head, tail = torch.randint(num_vertices, (2, num_edges + 5), generator=generator)
    relation = torch.randint(2, (num_edges + 5,), generator=generator) * has_types
    data = {"type": relation[:num_edges].to(torch.uint8)} if has_types else {}
    known = Topology.from_coo(src=head[:num_edges], dst=tail[:num_edges], num_src=num_vertices, edge_data=data)
    triples = list(zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True))
    scores = drawn(len(triples), num_vertices, seed=seed)
    before = scores.clone()
    found = filtered_ranks(
        scores, known, head=head, tail=tail, relation=relation if has_types else None, replaced=replaced
    )
    assert found.dtype == torch.float64
    assert found.tolist() == naive_filtered(scores, triples, set(triples[:num_edges]), replaced)
    assert scores.equal(before)


KNOWN = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([1]), num_src=3)
ONE = torch.tensor([0])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: link_ranks(torch.ones(2, 1), torch.ones(2, 3)), "expected [num_links] (in link_ranks, positive)"),
        (lambda: link_ranks(torch.ones(2), torch.ones(6)), "link_ranks, negative"),
        (lambda: link_ranks(torch.ones(2), torch.ones(3, 2)), "3 rows, 2 links (in link_ranks, negative)"),
        (
            lambda: link_ranks(torch.ones(2), torch.tensor([[1.0, 0.0], [0.0, torch.nan]])),
            "score is not a number: NaN (in link_ranks, negative, row 1)",
        ),
        (lambda: rank_metrics(torch.ones(2), hits=[0]), "hits is out of range: 0, expected an integer from 1"),
        (lambda: rank_metrics(torch.ones(2), hits=10), "a int, expected Sequence (in hits)"),
        (lambda: filtered_ranks(torch.ones(1, 4), KNOWN, head=ONE, tail=ONE), "4 scores of a triple, 3 vertices"),
        (lambda: filtered_ranks(torch.ones(2, 3), KNOWN, head=ONE, tail=ONE), "1 rows, 2 links (in head)"),
        (lambda: filtered_ranks(torch.ones(1, 3), KNOWN, head=ONE, tail=ONE + 3), "(in tail, position 0)"),
        (
            lambda: filtered_ranks(torch.ones(1, 3), KNOWN, head=ONE, tail=ONE, relation=ONE),
            "the known triples have no relations: edge data: none (in known)",
        ),
        (
            lambda: filtered_ranks(torch.ones(1, 3), KNOWN, head=ONE, tail=ONE, replaced="tails"),  # type: ignore[arg-type]
            "unknown end of a triple: 'tails', expected one of head, tail",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert named in str(error.value)
