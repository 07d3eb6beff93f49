"""Metrics of link prediction: how far true links stand above false ones.

The rank of a link among others is 1, plus the number of others with a higher score, plus half the number of others with the same
score. So a rank is the mean over all orders of equal scores, and a model that gives every link the same score gains nothing by it.

- mrr: mean of 1 / rank.
- hits_K: share of the links whose rank is K at most.
- roc_auc: share of pairs of a true and a false link in which the true one scores higher, half of the pairs with equal scores among
  them. All false links count together.

References:
    Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NeurIPS 2013, Sec. 4.2 (filtered ranks); Hu et al., Open
    Graph Benchmark, NeurIPS 2020 (MRR among drawn links). Their hits@K differ: there all links are ranked among the same false ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from sagann.errors import InputError, require_choice, require_type
from sagann.graph.checks import require_ids, slices, wrong_form
from sagann.graph.rows import gather_ranges
from sagann.graph.topology import Topology
from sagann.ranges import require_integer

HITS = (1, 3, 10)
"Values of K for which hits_K is measured by default."
End = Literal["head", "tail"]
"The end of a triple that candidates replace."


def link_metrics(positive: Tensor, negative: Tensor, *, hits: Sequence[int] = HITS) -> dict[str, float]:
    """Measure ``mrr``, ``hits_K`` and ``roc_auc`` of true links, each ranked among false links of its own.

    Args:
        positive: scores of the true links, [num_links].
        negative: scores of their false links, [num_links, num_negatives].
        hits: values of K.
    Returns:
        The metrics by name; none of them where there is no true link, or no false one.
    Raises:
        InputError: scores have another form, or one is NaN.
    Example:
        >>> link_metrics(torch.tensor([3.0, 1.0]), torch.tensor([[1.0, 0.0], [2.0, 0.0]]), hits=[1])
        {'mrr': 0.75, 'hits_1': 0.5, 'roc_auc': 0.8125}
    """
    ranks = link_ranks(positive, negative)
    if negative.numel() == 0:
        return {}
    scores = torch.cat([positive, negative.flatten()]).cpu()
    return rank_metrics(ranks, hits=hits) | {"roc_auc": area(scores, torch.arange(len(scores)) < len(positive))}


def rank_metrics(ranks: Tensor, *, hits: Sequence[int] = HITS) -> dict[str, float]:
    """Measure ``mrr`` and ``hits_K`` from ranks, [num_links]; nothing where there are none.

    Example:
        >>> rank_metrics(torch.tensor([1.0, 4.0]), hits=[1, 10])
        {'mrr': 0.625, 'hits_1': 0.5, 'hits_10': 1.0}
    """
    require_type(ranks, Tensor, where="rank_metrics, ranks", hint="Pass what link_ranks or filtered_ranks returns.")
    require_type(hits, Sequence, where="hits", hint="Pass a list of values of K.")
    for most in hits:
        require_integer(most, "hits", where="hits")
    if ranks.numel() == 0:
        return {}
    found = {"mrr": float(ranks.double().reciprocal().mean())}
    return found | {f"hits_{most}": float((ranks <= most).double().mean()) for most in hits}


def link_ranks(positive: Tensor, negative: Tensor) -> Tensor:
    """Rank each true link among its false ones.

    Ranks of several slices of the links may be concatenated, and measured by :func:`rank_metrics`.

    Args:
        positive: scores of the true links, [num_links].
        negative: scores of their false links, [num_links, num_negatives].
    Returns:
        float64 [num_links], from 1 to ``num_negatives + 1``; halves where scores are equal.
    Raises:
        InputError: scores have another form, or one is NaN.
    """
    _require_scores(positive, "[num_links]", 1, where="link_ranks, positive")
    _require_scores(negative, "[num_links, num_negatives]", 2, where="link_ranks, negative")
    _require_rows(len(negative), len(positive), where="link_ranks, negative")
    return 1 + _num_above(negative, positive)


def filtered_ranks(
    scores: Tensor,
    known: Topology,
    *,
    head: Tensor,
    tail: Tensor,
    relation: Tensor | None = None,
    replaced: End = "tail",
) -> Tensor:
    """Rank true triples (head, relation, tail) among those with any other vertex for an end, without the triples known to be true.

    The usual metrics of a knowledge graph are those of the ranks for both ends, concatenated.

    Args:
        scores: [num_triples, num_vertices]: the score of each triple with each vertex in the place of the replaced end.
        known: all known triples, those to validate and test on among them: edges from head to tail, relations in the edge
            data ``"type"``.
        head: int64 [num_triples], heads of the true triples.
        tail: int64 [num_triples], their tails.
        relation: int64 [num_triples], their relations; None for a graph without types of edges.
        replaced: the end that candidates replace.
    Returns:
        float64 [num_triples], from 1 on; halves where scores are equal.
    Raises:
        InputError: an argument has another form, an end is no vertex, or a score is NaN.
    Example:
        >>> known = Topology.from_coo(src=torch.tensor([0, 0]), dst=torch.tensor([1, 2]), num_src=4)
        >>> scores = torch.tensor([[0.0, 0.5, 0.9, 0.7]])
        >>> filtered_ranks(scores, known, head=torch.tensor([0]), tail=torch.tensor([1]))
        tensor([2.], dtype=torch.float64)
    """
    from sagann.sampling.arguments import require_square

    require_square(known, where="known")
    require_choice(replaced, get_args(End), what="unknown end of a triple", where="replaced")
    _require_scores(scores, "[num_triples, num_vertices]", 2, where="scores")
    if scores.shape[1] != known.num_src:
        raise InputError(
            f"candidates and vertices differ in number: {scores.shape[1]} scores of a triple, {known.num_src} "
            "vertices (in scores)",
            hint="Pass a score for every vertex.",
        )
    for name, ids in (("head", head), ("tail", tail), ("relation", relation)):
        if ids is not None:
            require_ids(ids, None if name == "relation" else known.num_src, where=name)
            _require_rows(len(ids), len(scores), where=name)
    if replaced == "tail":
        true, edges = tail, known.csr()
        offsets, positions = gather_ranges(edges.indptr, head.to(known.device))
        ids, candidates = edges.edge_ids[positions].long(), edges.indices[positions]
    else:
        true = head
        offsets, ids = gather_ranges(known.indptr, tail.to(known.device))
        candidates = known.indices[ids]
    rows = torch.repeat_interleave(offsets.diff(), output_size=len(ids))
    if relation is not None:
        if "type" not in known.edge_data:
            raise InputError(
                f"the known triples have no relations: edge data: {', '.join(sorted(known.edge_data)) or 'none'} (in known)",
                hint="Add the relation of each edge as edge data 'type', or leave relation=None.",
            )
        same = known.edge_data["type"][ids] == relation.to(known.device)[rows]
        rows, candidates = rows[same], candidates[same]
    true = true.to(scores.device).unsqueeze(1)
    # NaN, which integers have not, is neither above nor equal.
    scores = scores if scores.is_floating_point() else scores.double()
    others = scores.scatter(1, true, torch.nan)
    others[rows.to(scores.device), candidates.long().to(scores.device)] = torch.nan
    return 1 + _num_above(others, scores.gather(1, true).squeeze(1))


def _num_above(scores: Tensor, of_true: Tensor) -> Tensor:
    """Number of scores in each row that are higher than that of the row's true link, equal ones by half: float64 [num_rows]."""
    found = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    for at in slices(*scores.shape):
        found[at] = _above(scores[at], of_true[at].unsqueeze(1)).sum(1, dtype=torch.float64)
    return found


def _above(scores: Tensor, of_true: Tensor) -> Tensor:
    """1 for a higher score, 0.5 for an equal one, else 0."""
    return (scores > of_true).float() + 0.5 * (scores == of_true)


def area(scores: Tensor, truth: Tensor) -> float:
    """Share of pairs of a true and a false row in which the true one scores higher. Of equal scores half the pairs count."""
    distinct, rank = scores.unique(return_inverse=True)
    true = torch.bincount(rank[truth], minlength=len(distinct))
    false = torch.bincount(rank[~truth], minlength=len(distinct))
    below = false.cumsum(0) - false
    pairs = (true * (2 * below + false)).sum()
    return float(pairs.double() / (2 * true.sum() * false.sum()))


def _require_scores(scores: Tensor, form: str, num_dims: int, *, where: str) -> None:
    require_type(scores, Tensor, where=where, hint="Pass a tensor of scores.")
    if scores.ndim != num_dims:
        raise wrong_form(scores, form, where=where, hint="Pass a score for each link.")
    wrong = scores.isnan()
    if wrong.any():
        raise InputError(
            f"score is not a number: NaN (in {where}, row {int(wrong.nonzero()[0, 0])})",
            hint="Look for a loss that is not finite. A candidate to leave out may have the score -inf.",
        )


def _require_rows(count: int, num_links: int, *, where: str) -> None:
    if count != num_links:
        raise InputError(
            f"rows and links differ in number: {count} rows, {num_links} links (in {where})",
            hint="Pass a row for each link.",
        )
