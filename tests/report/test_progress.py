from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from sagann.report.progress import ProgressReporter, edges_per_s
from sagann.train import EpochRecord, RunInfo, TrainConfig, Trainer
from tests.train.runs import community_graph, seeded_model

INFO = RunInfo(
    model="gcn",
    data="cora",
    num_vertices=10,
    num_edges=3_000_000,
    num_hops=2,
    epochs=200,
    first_epoch=1,
    monitor="val/accuracy",
    device="cpu",
)


def shown(*, records=(), info=INFO, messages=(), terminal=True, width=160):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    reporter = ProgressReporter(console)
    reporter.on_start(info)
    for record in records:
        reporter.on_epoch(record)
    for message in messages:
        reporter.on_message(message)
    reporter.close()
    reporter.close()
    return console.file.getvalue()


def record(epoch, epoch_s, *, accuracy=None):
    metrics = {} if accuracy is None else {"val": {"loss": 1.0, "accuracy": accuracy}}
    return EpochRecord(epoch=epoch, loss=0.5, epoch_s=epoch_s, lr=0.1, metrics=metrics)


def test_the_bar_shows_time_rate_loss_and_the_monitored_metric():
    text = shown(records=[record(1, 0.25, accuracy=0.75)])
    assert "gcn on cora" in text
    assert "1/200" in text
    assert "250 ms  24M edges/s  loss 0.5000  val 0.7500" in text


def test_the_metric_of_the_last_evaluation_stays():
    text = shown(records=[record(1, 2.0, accuracy=0.75), record(2, 2.0)])
    assert "2/200 2.00 s  3M edges/s  loss 0.5000  val 0.7500" in text


def test_one_slow_epoch_does_not_make_the_rate_jump():
    text = shown(records=[record(epoch, 60.0 if epoch == 1 else 0.25) for epoch in range(1, 6)])
    assert text.rindex("250 ms") > text.rfind("60.00 s")


def test_messages_are_printed_as_they_are():
    assert "checkpoint [epoch-000010] is damaged" in shown(messages=["checkpoint [epoch-000010] is damaged"])


def test_a_file_gets_no_control_codes():
    assert "\x1b" not in shown(records=[record(1, 0.25)], messages=["note"], terminal=False)


def test_edges_per_second():
    assert edges_per_s(INFO, 2.0) == 3_000_000
    assert edges_per_s(INFO, 0.0) == 0.0


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_real_run_is_shown(epochs):
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    config = TrainConfig(epochs=epochs, device="cpu")
    Trainer(seeded_model(), community_graph(), config, reporter=ProgressReporter(console)).fit()
    assert f"{epochs}/{epochs}" in console.file.getvalue()


def test_eighty_columns_show_every_number():
    info = replace(INFO, data="/somewhere/deep/down/cora")
    text = shown(records=[record(150, 0.25, accuracy=0.75)], info=info, width=80)
    assert "150/200 250 ms  24M edges/s  loss 0.5000  val 0.7500" in text
    assert "gcn on cora" in text
    assert "…" not in text
