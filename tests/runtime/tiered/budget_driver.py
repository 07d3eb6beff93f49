"""Reads batches of a file of features through a tiered store: ``python -m tests.runtime.tiered.budget_driver FILE CACHE HOT ROWS``.

Some rows of the file hold their own number in every value, the others 0. Prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from sagann.runtime.tiered import TieredFeatures
from sagann.storage.npy import ArraySpec, map_npy
from tests.runtime.memory_driver import Watch

WIDTH, BATCH, NUM_BATCHES, EVERY = 128, 20_000, 5, 1000


def main() -> None:
    """Read random batches, some of them a second time, and compare the rows."""
    torch.set_num_threads(1)
    path, cache, hot, num_rows = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    features = map_npy(Path(path), ArraySpec(dtype="float32", shape=(num_rows, WIDTH), crc32=()))
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(num_rows, (BATCH,), generator=generator) for _ in range(NUM_BATCHES)]
    for batch in batches:
        batch[::10] = batch[::10] // EVERY * EVERY
    # Compiles what the watched store runs.
    TieredFeatures(torch.zeros(10, 2), hot=0.5, cache=cache, hottest=torch.arange(4)).rows(torch.arange(10))
    with Watch() as watch:
        store = TieredFeatures(features, hot=hot, cache=cache, hottest=torch.arange(0, num_rows, 3))
        wrong = 0
        for batch in [*batches, *batches]:
            rows = store.rows_of(store.announce(batch))
            expected = torch.where(batch % EVERY == 0, batch, 0).float()
            wrong += int((rows != expected[:, None]).sum())
    traffic = store.traffic()
    told = {"wrong": wrong, "above_bytes": watch.above_bytes, "hot_bytes": store.hot_bytes}
    sys.stdout.write(json.dumps(told | {"hot": traffic.hot.rows, "cold": traffic.cold.rows}) + "\n")


if __name__ == "__main__":
    main()
