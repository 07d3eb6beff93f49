"""The plan of an epoch of mini-batches names the stage that holds it up, and the options that help."""

from __future__ import annotations

from typing import Any

from sagann.plan.pipeline import PipelinedEpoch, PipelineStage, StageWork, simulate_epoch, with_options
from sagann.report.sampled_plan_text import sampled_plan_text
from sagann.runtime.tiered.counters import TierCounts
from sagann.train.sampled_forecast import Change, SampledForecast


def stage(name: str, seconds: float, cores: float = 1.0) -> PipelineStage:
    work = StageWork(seconds=seconds, cores=cores)
    return PipelineStage(name=name, is_threaded=name != "train", work=work, last=work)


def text_of(
    *stages: PipelineStage, num_cores: int = 8, num_batches: int = 50, slowdown: float = 1.0, **fields: Any
) -> str:
    window = fields.pop("window", 0)
    epoch = PipelinedEpoch(stages=stages, num_batches=num_batches, ahead=4, window=window, slowdown=slowdown)

    def change(threads: int, ahead: int) -> Change:
        seconds = simulate_epoch(with_options(epoch, threads=threads, ahead=ahead), num_cores).seconds
        return Change(threads=threads, ahead=ahead, seconds=seconds)

    given: dict[str, Any] = {
        "simulated": simulate_epoch(epoch, num_cores),
        "num_rehearsed": 24,
        "num_seeds": 100 * num_batches,
        "batch_size": 100,
        "fanouts": (25, -1),
        "num_edges": 1_234_567,
        "tiers": {"memory": TierCounts(rows=9000, num_bytes=9 << 20)},
        "batch_bytes": 2 << 20,
        "sampled_bytes": 1 << 20,
        "changes": (change(2, 4), change(1, 8)),
    }
    return sampled_plan_text(SampledForecast(**{**given, **fields}), processor="Round Numbers")


def test_an_epoch_in_words() -> None:
    assert text_of(stage("sample", 0.4), stage("load", 0.1, 0.5), stage("train", 0.2, 2.0)).splitlines() == [
        "Mini-batches: 50 an epoch, of 100 training vertices; fanouts 25, -1.",
        "An epoch: 1,234,567 edges sampled; 9,000 rows of features (9.0 MiB) from memory.",
        "Memory: about 10.0 MiB of mini-batches at a time, up to 4 made ahead. Graph, model, gradients and temporaries "
        "come on top.",
        "Expected: 20.3 s an epoch on 8 cores of Round Numbers, without evaluation; known from 24 rehearsed batches.",
        "Each stage by itself: sampling 20 s, loading features 5 s, training 10 s. The cores are busy for 26%. The "
        "bottleneck is sampling. --sampling-threads 2 would make it 10.5 s.",
    ]


def test_a_window_of_sampled_batches_is_told_and_counted() -> None:
    text = text_of(stage("sample", 0.1), stage("load", 0.1), stage("train", 0.2), window=4)
    assert "about 14.0 MiB of mini-batches at a time, up to 4 made ahead, and up to 4 further ones sampled." in text


def test_where_no_option_helps_the_bottleneck_says_what_does() -> None:
    text = text_of(stage("sample", 0.1), stage("load", 0.1), stage("train", 0.4, 2.0))
    assert (
        "The bottleneck is training. More --sampling-threads or --batches-ahead would not help. A smaller model"
        in text
    )
    text = text_of(stage("sample", 0.1), stage("load", 0.1), stage("train", 0.2, 2.0), num_cores=2)
    assert "The cores are busy for 100%" in text
    assert "All cores are busy, and stages compete for them. More --sampling-threads" in text


def test_what_stages_lose_beside_one_another_is_said() -> None:
    assert "Together" not in text_of(stage("load", 0.1), stage("train", 0.1), slowdown=1.04)
    text = text_of(stage("load", 0.1), stage("train", 0.1), slowdown=1.5)
    assert (
        "training 5 s. Together they took 1.50 times the seconds that a simulation of these gives; the expected seconds have this "
        "factor. The cores" in text
    )
    assert "Expected: 7.65 s" in text


def test_tiers_and_a_smaller_last_batch_are_named() -> None:
    tiers = {
        "hot": TierCounts(rows=10, num_bytes=1 << 10),
        "cold": TierCounts(rows=2000, num_bytes=1 << 20),
        "Mine": TierCounts(),
    }
    text = text_of(stage("load", 0.1), stage("train", 0.1), num_seeds=4930, tiers=tiers)
    assert "50 an epoch, of 100 training vertices, 30 in the last one;" in text
    assert (
        "10 rows of features (1.0 KiB) from the hot tier, 2,000 rows of features (1.0 MiB) from the cold tier, 0 rows of "
        "features (0 B) from Mine." in text
    )
    text = text_of(stage("load", 0.1), stage("train", 0.1), num_batches=1, num_seeds=60)
    assert "Mini-batches: 1 an epoch, of 60 training vertices;" in text
