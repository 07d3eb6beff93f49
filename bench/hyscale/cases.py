"""The paper's experiments: its graphs, models and figures.

Sizes of graphs and layers are those of Table III; training vertices those of the Open Graph Benchmark. What the paper does not state is a
log-normal law of degrees: of ogbn-papers100M a hundredth of the vertices has 32% of the edges (Data Tiering 2021, Sec. 5.2), of
ogbn-products the part is taken from another graph of products bought together, AmazonComputers, where it was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from bench.hyscale.batches import DegreeLaw, expected_counts, log_normal_law
from sagann.hybrid.forecast import Job, Refinements, Widths
from sagann.plan.machine import Machine

SAMPLED_EDGES_PER_S = 1e7
"Edges that a thread samples per second: an assumption, since the paper measures it and does not print it."
SEEDS = 1024
"Seeds of a mini-batch on each accelerator (Sec. VI-A2)."
ALL = Refinements()


class Dataset(NamedTuple):
    law: DegreeLaw
    num_train: int
    features: int
    classes: int


DATASETS = {
    # Undirected: its 61,859,140 edges count twice.
    "ogbn-products": Dataset(
        log_normal_law(num_vertices=2_449_029, mean=2 * 61_859_140 / 2_449_029, top_share=0.14, symmetric=True),
        num_train=196_615,
        features=100,
        classes=47,
    ),
    "ogbn-papers100M": Dataset(
        log_normal_law(num_vertices=111_059_956, mean=1_615_685_872 / 111_059_956, top_share=0.32, symmetric=False),
        num_train=1_207_179,
        features=128,
        classes=172,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    rival: str
    "System whose sample and width are taken."
    dataset: str
    model: str
    fanouts: tuple[int, ...]
    "Sample size (Table V), taken as nearest the seeds first."
    hidden: int
    paper_s: float
    "Seconds of an epoch of HyScale-GNN (Table VI)."

    def job(self, machine: Machine, refinements: Refinements = ALL, *, deduplicated: bool = True) -> Job:
        """What is trained, on a machine; without ``deduplicated`` a vertex counts for every edge that reaches it."""
        dataset = DATASETS[self.dataset]
        hidden = [self.hidden] * (len(self.fanouts) - 1)
        return Job(
            machine=machine,
            counts=cache(partial(expected_counts, dataset.law, self.fanouts, deduplicated=deduplicated)),
            num_train=dataset.num_train,
            widths=Widths(features=(dataset.features, *hidden, dataset.classes), concatenates=self.model == "SAGE"),
            sampled_edges_per_s=SAMPLED_EDGES_PER_S,
            refinements=refinements,
        )


_PAIRS = [(dataset, model) for dataset in DATASETS for model in ("GCN", "SAGE")]


def _cases(rival: str, fanouts: tuple[int, ...], hidden: int, seconds: tuple[float | None, ...]) -> list[Case]:
    return [
        Case(rival=rival, dataset=dataset, model=model, fanouts=fanouts, hidden=hidden, paper_s=paper_s)
        for (dataset, model), paper_s in zip(_PAIRS, seconds, strict=True)
        if paper_s is not None
    ]


CASES = [
    *_cases("PaGraph", (25, 10), 256, (0.27, 0.49, 0.58, 1.91)),
    *_cases("P3", (25, 10), 32, (0.27, 0.28, 0.57, 0.59)),
    *_cases("DistDGLv2", (15, 10, 5), 256, (None, 1.69, None, 3.67)),
]
"The ten epochs of Table VI, rows 'This Work'."
FIGURE_11 = CASES[:4]
"The cases of figures 9 and 11: two layers of width 256, as in Sec. VI-A2."
