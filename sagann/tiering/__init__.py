"""Tiering: which rows of features are hot. Scores of vertices, measured reads, and the order that puts hot rows first. Pure
algorithms over a Topology."""

from sagann.tiering.accesses import access_curve, measured_accesses
from sagann.tiering.scores import (
    SCORES,
    Score,
    hottest,
    labelled_vertices,
    out_degree,
    reverse_pagerank,
    score_vertices,
    weighted_reverse_pagerank,
)

__all__ = [
    "SCORES",
    "Score",
    "access_curve",
    "hottest",
    "labelled_vertices",
    "measured_accesses",
    "out_degree",
    "reverse_pagerank",
    "score_vertices",
    "weighted_reverse_pagerank",
]
