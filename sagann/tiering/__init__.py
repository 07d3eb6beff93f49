"""Data tiering: which rows of features lie in the fast tier. Scores of vertices, measured reads, and caches. Pure algorithms: they open
no file and no device."""

from sagann.tiering.accesses import access_curve, measured_accesses
from sagann.tiering.caches import CACHES, Cache, Static
from sagann.tiering.look_ahead import LookAhead
from sagann.tiering.scores import (
    SCORES,
    Score,
    hottest,
    inclusion_probability,
    labelled_vertices,
    out_degree,
    reverse_pagerank,
    score_vertices,
    weighted_reverse_pagerank,
)

__all__ = [
    "CACHES",
    "SCORES",
    "Cache",
    "LookAhead",
    "Score",
    "Static",
    "access_curve",
    "hottest",
    "inclusion_probability",
    "labelled_vertices",
    "measured_accesses",
    "out_degree",
    "reverse_pagerank",
    "score_vertices",
    "weighted_reverse_pagerank",
]
