"""Where a sampled epoch in memory spends its time: ``python -m bench.minibatches.profile``.

It has the options of ``python -m bench.minibatches``, and trains the same batches as its row ``sagann:calling``. Dense maps are the matrix products
of the model's linear maps, forward and backward, as PyTorch's profiler counts them. They are the same in every contestant, which has the same
widths and nearly the same vertices; an epoch cannot take less.

The last two columns are no parts of the epoch: loading as a whole ("load alone"), and a floor for it ("rows alone"). For the floor, the same rows of
features are copied by ``torch.index_select`` with all threads, and by ``numpy.take``, and the faster one counts. Nothing else is done
meanwhile, and the fastest of several turns counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.minibatches.__main__ import parsed
from bench.minibatches.sagann_worker import Training, load
from bench.minibatches.tasks import described, specification_of, write_graph, write_task
from sagann.sampling import Sampled

PARTS = ("sample", "load", "dense maps", "optimizer", "edges and the rest of the step")
ALONE = ("load alone", "rows alone")
# Turns of the ways to load, of which the fastest one counts.
_TURNS = 9
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mv")
_STEP = "Optimizer.step#"


def main(given: Sequence[str] | None = None) -> int:
    """Print a row for each task; the exit status."""
    options = parsed(given)
    torch.set_num_threads(options.threads)
    print(f"{described(options)}\n")
    print(f"| task | {' | '.join(PARTS)} | epoch, s | {' | '.join(ALONE)} |\n|---|{'--:|' * (len(PARTS) + 3)}")
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as name:
        folder = Path(name)
        write_graph(folder, options)
        for task in options.tasks:
            write_task(folder, task, options)
            specification = {**specification_of(task, options, folder), "variant": "calling"}
            training = Training(specification, load(specification, folder))
            training.epoch()
            epochs = [seconds_of(training) for _ in range(options.rounds)]
            parts = [median(epoch[part] for epoch in epochs) for part in (*PARTS, "epoch")]
            parts += alone_s(training)
            print(f"| {task.caption} | {' | '.join(f'{seconds:.3f}' for seconds in parts)} |", flush=True)
    return 0


def seconds_of(training: Training) -> dict[str, float]:
    """Seconds of an epoch, in all and by part."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        epoch = training.epoch()
    events = found.key_averages()
    dense_s = sum(each.self_cpu_time_total for each in events if each.key in _PRODUCTS) / 1e6
    optimizer_s = sum(each.cpu_time_total for each in events if each.key.startswith(_STEP)) / 1e6
    rest_s = epoch["step_s"] - dense_s - optimizer_s
    return {
        **epoch["stages"],
        **dict(zip(PARTS[2:], (dense_s, optimizer_s, rest_s), strict=True)),
        "epoch": epoch["seconds"],
    }


def alone_s(training: Training) -> tuple[float, float]:
    """Seconds of loading the batches of an epoch, and of copying their rows of features, while nothing else is done."""
    minibatches = training.minibatches
    features = minibatches.graph.features
    assert isinstance(features, Tensor)
    rows = features.numpy()
    batches = [
        minibatches.sample(seeds, epoch=1, batch=number) for number, seeds in enumerate(minibatches.seeds_of(1))
    ]

    def seconds_by(work: Callable[[Sampled], object]) -> float:
        since_s = time.perf_counter()
        for batch in batches:
            work(batch)
        return time.perf_counter() - since_s

    ways: list[Callable[[Sampled], object]] = [
        minibatches.load,
        lambda batch: torch.index_select(features, 0, batch.src_ids),
        lambda batch: np.take(rows, batch.src_ids.numpy(), axis=0, mode="clip"),
    ]
    turns = [[seconds_by(way) for way in ways] for _ in range(_TURNS)]
    load_s, *copies_s = (min(way) for way in zip(*turns, strict=True))
    return load_s, min(copies_s)


if __name__ == "__main__":
    raise SystemExit(main())
