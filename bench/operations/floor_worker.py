"""The floor of an operation as a contestant: its gathers by hand-written C++, its bytes by copying."""

from __future__ import annotations

from pathlib import Path

from bench.epochs.floor_worker import Floor, require_yardstick
from bench.operations.floor import work_of
from bench.standalone.operation import num_heads
from bench.standalone.serve import serve
from bench.standalone.stored import Stored, read_stored
from sagann.graph import Topology


def load(specification: dict, folder: Path) -> Stored:
    """The graph."""
    require_yardstick()
    return read_stored(folder)


def build(specification: dict, stored: Stored) -> Floor:
    """The floor of the operation on this graph; every graph here is symmetric, so backward gathers are the same."""
    num_features = stored.features.shape[1]
    work = work_of(
        specification["operation"],
        vertices=stored.num_vertices,
        edges=len(stored.src),
        features=num_features,
        heads=num_heads(num_features),
    )
    topology = Topology(indptr=stored.indptr, indices=stored.src, num_src=stored.num_vertices, validate=False)
    return Floor(work, topology)


if __name__ == "__main__":
    serve(load, build)
