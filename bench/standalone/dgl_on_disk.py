"""DGL's GraphBolt with features mapped from disk, as its on-disk datasets keep them (2.1 has no DiskBasedFeature). Run by DGL's own Python."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

STARTED_S = time.monotonic()

from dgl_epochs import Model  # noqa: E402
from dgl_minibatches import of_graphbolt  # noqa: E402
from large import say, seeds_of, specification  # noqa: E402
from minibatches import SampledTraining  # noqa: E402
from stored import map_dataset  # noqa: E402


def main() -> None:
    asked = specification()
    stored = map_dataset(Path(asked["folder"]))
    stored = replace(
        stored, indptr=stored.indptr.clone(), src=stored.src.clone(), train=seeds_of(asked, len(stored.labels))
    )
    model = Model(asked, stored.features.shape[1], asked["classes"])
    training = SampledTraining(model, of_graphbolt(asked, stored, model))
    ready_s = time.monotonic() - STARTED_S
    say(**training.epoch(), batches=asked["batches"], ready_s=ready_s)


if __name__ == "__main__":
    main()
