"""Loads the rows of some batches from a file of features: ``python -m bench.cold_bytes.loading_worker FOLDER VARIANT HOT BATCHES``.

Variants: ``memmap`` (NumPy indexes a map of the file), ``from_file`` (PyTorch does) or the name of a cache of TieredFeatures. Prints a line of
JSON. A tiered store announces WINDOW batches ahead, and is made before the clock starts. The first of the BATCHES is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sagann.runtime.tiered import TieredFeatures

WIDTH, FLOAT_BYTES, WINDOW = 128, 4, 16


def main() -> None:
    """Load, and tell the seconds, and a sum of values for each batch."""
    folder, variant, hot, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    path = folder / "features.bin"
    num_rows = path.stat().st_size // (FLOAT_BYTES * WIDTH)
    offsets = np.load(folder / "offsets.npy")
    ids = torch.from_numpy(np.load(folder / "ids.npy"))
    batches = [ids[begin:end] for begin, end in pairwise(offsets)][:count]
    load, traffic = _loader(path, variant, hot, num_rows, folder, batches)
    load(0)
    began_s = time.perf_counter()
    totals = [float(load(number)[:, 0].double().sum()) for number in range(1, len(batches))]
    told = {"seconds": time.perf_counter() - began_s, "totals": totals, **traffic()}
    sys.stdout.write(json.dumps(told) + "\n")


def _loader(
    path: Path, variant: str, hot: str, num_rows: int, folder: Path, batches: list[Tensor]
) -> tuple[Callable[[int], Tensor], Callable[[], dict[str, float]]]:
    """A function that loads the batch of a number, and one that tells what was read."""
    if variant == "memmap":
        mapped = np.memmap(path, np.float32, "r", shape=(num_rows, WIDTH))
        return lambda number: torch.from_numpy(mapped[batches[number].numpy()]), dict
    features = torch.from_file(str(path), shared=False, size=num_rows * WIDTH).view(num_rows, WIDTH)
    if variant == "from_file":
        return lambda number: features[batches[number]], dict
    hottest = torch.from_numpy(np.load(folder / "hottest.npy"))
    store = TieredFeatures(features, hot=hot, cache=variant, hottest=hottest)
    del hottest
    following = iter(batches)
    announced = deque(map(store.announce, islice(following, WINDOW - 1)))

    def load(number: int) -> Tensor:
        announced.extend(map(store.announce, islice(following, 1)))
        return store.rows_of(announced.popleft())

    def told() -> dict[str, float]:
        traffic = store.traffic()
        return {"hit_rate": traffic.hit_rate, "read_bytes": traffic.cold_read_bytes, "reads": traffic.cold_reads}

    return load, told


if __name__ == "__main__":
    main()
