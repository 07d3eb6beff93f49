"""The plan of an epoch of mini-batches names the stage that holds it up, and what would help."""

from __future__ import annotations

from typing import Any

import pytest

from sagann.report.sampled_plan_text import sampled_plan_text
from sagann.runtime.tiered.counters import TierCounts
from sagann.train.sampled_forecast import SampledForecast


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
    return sampled_plan_text(SampledForecast(**{**given, **fields}), processor="8 cores of Round Numbers")


def test_an_epoch_in_words() -> None:
    assert text_of().splitlines() == [
        "Mini-batches: 50 an epoch, of 100 training vertices; fanouts 25, -1.",
        "An epoch: 1,234,567 edges sampled; 9,000 rows of features (9.0 MiB) from memory.",
        "Memory: about 10.0 MiB of mini-batches at a time, up to 4 made ahead. Graph, model, gradients and temporaries "
        "come on top.",
        "Expected: 20.3 s an epoch on 8 cores of Round Numbers, without evaluation; known from 24 rehearsed batches.",
        "Busy, of the epoch: sampling 98%, loading features 25%, training 50%. The cores are busy for 26%. The bottleneck is sampling. "
        "Cores are idle: more --sampling-threads may help. Fewer edges for each vertex (--sample) take less sampling.",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"busy": {"load": 0.2, "train": 0.9}}, "The bottleneck is training. A smaller model (--hidden, --layers)"),
        ({"busy_cores": 0.97}, "The bottleneck is sampling. All cores are busy. Fewer edges"),
        ({"ahead": 0}, "each made in the training step."),
        ({"ahead": 0}, "The bottleneck is sampling. Fewer edges"),
        ({"num_seeds": 4930}, "50 an epoch, of 100 training vertices, 30 in the last one;"),
        ({"num_batches": 1, "num_seeds": 60}, "Mini-batches: 1 an epoch, of 60 training vertices;"),
        (
            {
                "tiers": {
                    "hot": TierCounts(rows=10, num_bytes=1 << 10),
                    "cold": TierCounts(rows=2000, num_bytes=1 << 20),
                    "Mine": TierCounts(),
                }
            },
            "10 rows of features (1.0 KiB) from the hot tier, 2,000 rows of features (1.0 MiB) from the cold tier, 0 rows of "
            "features (0 B) from Mine.",
        ),
    ],
)
def test_what_the_text_says(given: dict[str, Any], said: str) -> None:
    assert said in text_of(**given)
