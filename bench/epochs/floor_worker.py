"""The floor as a contestant: its dense products, its gathers by hand-written C++, its bytes by copying.

Bandwidths are measured by doing: every gather runs on this graph at its width, with the loop of
:mod:`bench.kernels.yardstick`. Needs g++, and AVX2 or AVX-512.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch

from bench.epochs.floor import FLOAT_BYTES, Size, Work, work_of
from bench.kernels.yardstick import Yardstick, can_run
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import Stored, read_stored
from sagann.graph import Topology

SELF_LOOPS = ("gcn", "gat")
COPIED_AT_ONCE_BYTES = 64 << 20
"Twice the last-level cache, so that copying goes through memory."


class Floor:
    def __init__(self, work: Work, topology: Topology, features: torch.Tensor | None) -> None:
        self.work, self.topology = work, topology
        most = max([max(m * k, k * n) for m, k, n in work.products], default=0)
        self.operands = torch.randn(most) if most else torch.empty(0)
        self.product = torch.empty(max([m * n for m, _, n in work.products], default=0))
        half = min(COPIED_AT_ONCE_BYTES, work.moved_bytes // 2) // FLOAT_BYTES
        self.source, self.target = torch.ones(half), torch.ones(half)
        self.features = features

    @cached_property
    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What is gathered, and where to: features and results, and gradients of these and of those."""
        widest = max(self.work.gathers, default=0)
        return [
            (torch.ones(self.topology.num_src * widest), torch.ones(self.topology.num_dst * widest))
            for _ in range(2)
        ]

    def run(self) -> float:
        """One epoch's floor."""
        self._products()
        self._sparse_products()
        self._gathers()
        self._copies()
        return float("nan")

    def _products(self) -> None:
        for m, k, n in self.work.products:
            left, right = self.operands[: m * k].view(m, k), self.operands[: k * n].view(k, n)
            # The gradient of weights is a product with a transposed matrix.
            left = self.operands[: m * k].view(k, m).T if k > m and k > n else left
            torch.mm(left, right, out=self.product[: m * n].view(m, n))

    def _sparse_products(self) -> None:
        if self.features is None:
            return
        by_rows, by_columns = self.nonzeros
        for loops, widths in ((by_rows, self.work.by_rows), (by_columns, self.work.by_columns)):
            for width in widths:
                x, out = (rows[: count * width] for rows, count in zip(self.mapped, _sides(loops), strict=True))
                loops.run("sum", x, out, num_features=width)

    @cached_property
    def mapped(self) -> list[torch.Tensor]:
        """What sparse products read and write: rows of weights, and of vertices."""
        assert self.features is not None
        widest = max([*self.work.by_rows, *self.work.by_columns], default=0)
        return [torch.ones(max(self.features.shape) * widest) for _ in range(2)]

    @cached_property
    def nonzeros(self) -> tuple[Yardstick, Yardstick]:
        """The C++ loops over the non-zeros of the features: a sparse product is a sum over these, by rows and by columns."""
        assert self.features is not None
        vertex, feature = self.features.nonzero().int().unbind(1)
        num_vertices, num_features = self.features.shape
        # A topology's destinations are among its sources.
        sources = max(num_vertices, num_features)
        return (
            Yardstick(Topology.from_coo(src=feature, dst=vertex, num_src=sources, num_dst=num_vertices)),
            Yardstick(Topology.from_coo(src=vertex, dst=feature, num_src=sources, num_dst=num_features)),
        )

    def _gathers(self) -> None:
        # In order of width, so that two of a width, forward and backward, do not find the other's rows in the cache.
        for number, width in enumerate(sorted(self.work.gathers)):
            x, out = self.rows[number % 2]
            self.yardstick.run("sum", x, out, num_features=width)

    @cached_property
    def yardstick(self) -> Yardstick:
        return Yardstick(self.topology)

    def _copies(self) -> None:
        # Copying reads a byte and writes one.
        left = self.work.moved_bytes // 2 // FLOAT_BYTES
        while left > 0:
            self.target[:left].copy_(self.source[:left])
            left -= len(self.source)


def require_yardstick() -> None:
    """Check that the C++ loops can be compiled and run."""
    if not can_run():
        raise UnsupportedError("the floor's gathers need g++, and a processor with AVX2 or AVX-512")


def load(specification: dict, folder: Path) -> Stored:
    """The graph, with self-loops where the model has them."""
    require_yardstick()
    stored = read_stored(folder)
    return stored.with_self_loops() if specification["model"] in SELF_LOOPS else stored


def build(specification: dict, stored: Stored) -> Floor:
    """The floor of the model on this graph; every graph here is symmetric, so backward gathers are the same."""
    size = Size(
        vertices=stored.num_vertices,
        edges=len(stored.src),
        features=stored.features.shape[1],
        classes=stored.num_classes,
        train=len(stored.train),
        hidden=specification["hidden"],
        heads=specification["heads"],
        layers=specification["layers"],
        nonzeros=int(stored.features.count_nonzero()) if specification["sparse"] else None,
        dropout=specification["dropout"] > 0,
        evaluates=specification["defaults"],
    )
    topology = Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices, validate=False)
    features = stored.features if specification["sparse"] else None
    return Floor(work_of(specification["model"], size), topology, features)


def _sides(loops: Yardstick) -> tuple[int, int]:
    return loops.topology.num_src, loops.topology.num_dst


if __name__ == "__main__":
    serve(load, build)
