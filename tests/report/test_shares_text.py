"""Plans of mini-batches name the stage that holds an epoch up, and what would help; those of trainers name who does what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sagann.hybrid.forecast import predict
from sagann.report.shares_text import batches_text, trainers_text
from sagann.runtime.tiered.counters import TierCounts
from sagann.train.sampled_forecast import SampledForecast
from tests.hybrid.settings import assignment, job, machine


def text_of(**fields: Any) -> str:
    given: dict[str, Any] = {
        "seconds": 20.27,
        "num_batches": 50,
        "num_rehearsed": 24,
        "num_seeds": 5000,
        "batch_size": 100,
        "fanouts": (25, -1),
        "num_edges": 1_234_567,
        "tiers": {"memory": TierCounts(rows=9000, num_bytes=9 << 20)},
        "ahead": 4,
        "ahead_bytes": 10 << 20,
        "busy": {"sample": 0.98, "load": 0.251, "train": 0.5},
        "busy_cores": 0.26,
    }
    return batches_text(SampledForecast(**{**given, **fields}), processor="8 cores of Round Numbers")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Mini-batches: 50 an epoch, of 100 training vertices; fanouts 25, -1."),
        ({}, "The bottleneck is sampling. Cores are idle: more --sampling-threads may help. Fewer edges"),
        ({"busy": {"load": 0.2, "train": 0.9}}, "The bottleneck is training. A smaller model (--hidden, --layers)"),
        ({"busy_cores": 0.97}, "The bottleneck is sampling. All cores are busy. Fewer edges"),
        ({"ahead": 0}, "each made in the training step."),
        ({"num_seeds": 4930}, "50 an epoch, of 100 training vertices, 30 in the last one;"),
        ({"num_batches": 1, "num_seeds": 60}, "Mini-batches: 1 an epoch, of 60 training vertices;"),
        ({"tiers": {"hot": TierCounts(rows=1000, num_bytes=1 << 10)}}, "1,000 rows of features (1.0 KiB) from the hot tier"),
    ],
)  # fmt: skip
def test_mini_batches(given: dict[str, Any], said: str) -> None:
    assert said in text_of(**given)


def test_alike_accelerators_are_named_together() -> None:
    described = machine(devices=dict.fromkeys(("accelerator0", "accelerator1"), machine().devices["accelerator0"]))
    found = predict(job(described), assignment(50, 75, 75))
    text = trainers_text(found, machine="round figures", more=None)
    assert text.splitlines()[:3] == [
        "Machine: round figures.",
        "Seeds of an iteration: 50 on the processor, 75 on accelerator0, 75 on accelerator1; 200 in all, 50 iterations an epoch.",
        "Threads of the processor: 2 sample, 2 load, 4 train.",
    ]
    # 75 x 12,100 bytes at 1e8 bytes per second.
    assert re.search(r"copies 9\.0[78] ms on accelerator0 and accelerator1", text)
    assert text.endswith(f"The bottleneck is {found.times.bottleneck}.")


def test_what_one_more_brings() -> None:
    few, many = (predict(job(), split) for split in (assignment(0, 200), assignment(0, 100, 100)))
    text = trainers_text(few, machine="round figures", more=many)
    assert "Seeds of an iteration: 200 on accelerator0; 200 in all" in text
    assert re.search(r"(2\.00|1\.9\d) times as fast", text.splitlines()[-1])
