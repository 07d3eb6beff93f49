"""Where a sampled epoch in memory spends its time: ``python -m bench.minibatches.profile``.

It has the options of ``python -m bench.minibatches``, and trains the same batches as its row ``sagann:calling``. Dense maps are the matrix products
of the model's linear maps, forward and backward, as PyTorch's profiler counts them. They are the same in every contestant, which has the same
widths and nearly the same vertices; an epoch cannot take less.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

from bench.minibatches.__main__ import parsed
from bench.minibatches.sagann_worker import Training, load
from bench.minibatches.tasks import described, specification_of, write_graph, write_task

PARTS = ("sample", "load", "dense maps", "optimizer", "edges and the rest of the step")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mv")
_STEP = "Optimizer.step#"


def main(given: Sequence[str] | None = None) -> int:
    """Print a row for each task; the exit status."""
    options = parsed(given)
    torch.set_num_threads(options.threads)
    print(f"{described(options)}\n")
    print(f"| task | {' | '.join(PARTS)} | epoch, s |\n|---|{'--:|' * (len(PARTS) + 1)}")
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


if __name__ == "__main__":
    raise SystemExit(main())
