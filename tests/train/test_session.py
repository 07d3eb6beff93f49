"""A resumed run is bitwise the uninterrupted one, whatever the optimizer and the scheduler."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sagann.errors import CheckpointError, InputError
from sagann.nn import ModelConfig, build_model
from sagann.train import load_run, read_run
from sagann.train.session import BestTracker
from tests.train import runs
from tests.train.runs import (
    CrashError,
    Heard,
    Plain,
    TwoLayers,
    assert_same_bits,
    community_graph,
    lines_of,
    numbers_of,
    seeded_model,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("naive")

OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"amsgrad": True},
    "LBFGS": {"max_iter": 4, "history_size": 3, "line_search_fn": "strong_wolfe"},
}
SCHEDULERS = {
    "CosineAnnealingWarmRestarts": {"T_0": 5},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 12},
    "ReduceLROnPlateau": {"patience": 1, "factor": 0.5},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
}


def trainer_of(run_dir, *, stop_after=None, **options):
    options = {"epochs": 12, "checkpoint_every": 3, "lr": 0.05, **options}
    return runs.trainer_of(run_dir=run_dir, reporter=Heard(stop_after), **options)


@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop"])
def test_what_an_optimizer_on_a_device_has_kept_is_continued_on_the_processor(tmp_path, optimizer):
    session = trainer_of(tmp_path, optimizer=optimizer)._session()
    session.run_epoch()
    kept = session.state_dict(run="", history_bytes=0)

    def next_loss(options):
        state = deepcopy(kept)
        for group in state["optimizer"]["param_groups"]:
            group |= options
        other = trainer_of(tmp_path, optimizer=optimizer)._session()
        other.restore(state, list(session.history))
        return other.run_epoch().loss, other.run_epoch().loss

    assert next_loss({"capturable": True, "fused": optimizer == "Adam"}) == next_loss({})


def check_resume(tmp_path, *, kind=TwoLayers, stop_after=8, **options):
    """Compare a run that crashed after ``stop_after`` with one that did not."""

    def make(name, *, seed=0, **more):
        return trainer_of(tmp_path / name, model=seeded_model(kind, seed=seed), **{**options, **more})

    whole = make("whole")
    expected = whole.fit()
    with pytest.raises(CrashError):
        make("broken", stop_after=stop_after).fit()
    # The resumed process would build its model anew; other weights show that none are left over.
    resumed = make("broken", seed=99)
    result = resumed.fit(resume=True)
    assert resumed._reporter.info.first_epoch > 1
    assert numbers_of(result) == numbers_of(expected)
    assert result.metrics == expected.metrics
    assert (result.best_epoch, result.stopped_early) == (expected.best_epoch, expected.stopped_early)
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))
    assert lines_of(tmp_path / "broken") == lines_of(tmp_path / "whole")
    return result


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.items(), ids=OPTIMIZERS)
def test_every_optimizer_resumes_bitwise(tmp_path, name, options):
    check_resume(tmp_path, optimizer=name, optimizer_options=options, weights="last")


@pytest.mark.parametrize(("name", "options"), SCHEDULERS.items(), ids=SCHEDULERS)
def test_every_scheduler_resumes_bitwise(tmp_path, name, options):
    momentum = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}
    check_resume(tmp_path, **momentum, scheduler=name, scheduler_options=options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_device_resumes_bitwise(tmp_path):
    check_resume(tmp_path, device="cuda")


def test_best_weights_from_before_the_checkpoint_survive(tmp_path):
    result = check_resume(tmp_path, epochs=40, checkpoint_every=1, stop_after=30, lr=0.2, monitor="val/loss")
    assert result.best_epoch < 30


def test_early_stopping_resumes(tmp_path):
    result = check_resume(tmp_path, epochs=200, patience=6, lr=0.2, monitor="val/loss", eval_every=2)
    assert result.stopped_early


def test_a_run_that_stopped_early_says_what_has_it_go_on_and_does_with_more_patience(tmp_path):
    options = {"lr": 0.2, "monitor": "val/loss"}
    patient = trainer_of(None, patience=9, epochs=60, **options)
    expected = patient.fit()
    stopped = trainer_of(tmp_path, patience=3, epochs=60, **options).fit()
    assert stopped.stopped_early
    assert stopped.epochs < expected.epochs
    resumed = trainer_of(tmp_path, patience=3, epochs=80, **options)
    assert resumed.resume().epochs == stopped.epochs
    (said,) = resumed._reporter.messages
    assert f"stopped early after epoch {stopped.epochs}" in said
    assert "Raise patience" in said
    resumed = trainer_of(tmp_path, patience=9, epochs=60, **options)
    assert numbers_of(resumed.resume()) == numbers_of(expected)
    assert_same_bits(weights_of(resumed.model), weights_of(patient.model))


def test_parameters_that_the_optimizer_leaves_alone_do_not_count(tmp_path):
    def make(run_dir, stop_after=None):
        return trainer_of(
            run_dir,
            stop_after=stop_after,
            param_groups=lambda model, decay: [{"params": list(model.second.parameters())}],
            optimizer="SGD",
            lr=0.1,
            clip_norm=0.05,
            weights="last",
        )

    whole = make(tmp_path / "whole")
    whole.fit()
    with pytest.raises(CrashError):
        make(tmp_path / "broken", 8).fit()
    resumed = make(tmp_path / "broken")
    resumed.fit(resume=True)
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))
    assert_same_bits(weights_of(resumed.model.first), weights_of(seeded_model().first))


def test_a_parameter_that_is_not_contiguous_is_written(tmp_path):
    def transposed():
        model = seeded_model(Plain)
        model.linear.weight = nn.Parameter(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).t())
        return model

    trainer = trainer_of(tmp_path, model=transposed(), epochs=2)
    trainer.fit()
    model = transposed()
    assert_same_bits(weights_of(load_run(tmp_path, model=model).model), weights_of(trainer.model))


def test_an_option_may_be_written_in_another_way(tmp_path):
    trainer_of(tmp_path, epochs=2, optimizer="SGD", lr=1).fit()
    assert trainer_of(tmp_path, epochs=4, optimizer="SGD", lr=1.0).fit(resume=True).epochs == 4
    assert trainer_of(tmp_path, epochs=5, optimizer="SGD", lr=1).fit(resume=True).epochs == 5


def test_damaged_checkpoints_do_not_count_among_those_that_are_kept(tmp_path):
    with pytest.raises(CrashError):
        trainer_of(tmp_path, stop_after=10, keep_checkpoints=3).fit()
    (tmp_path / "checkpoints/epoch-000009.pt").write_text("")
    with pytest.raises(CrashError):
        trainer_of(tmp_path, stop_after=8, keep_checkpoints=1, checkpoint_every=1).fit(resume=True)
    # The damaged one, which is not removed either, until there is another of its epoch.
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"epoch-000008.pt", "epoch-000009.pt"}
    assert trainer_of(tmp_path).fit(resume=True).epochs == 12


@pytest.mark.parametrize(
    ("name", "overwrite"), [("checkpoints", False), ("events", True), ("profile.json", False), ("run.json", True)]
)
def test_what_no_run_has_made_is_left_alone(tmp_path, name, overwrite):
    foreign, temporary = tmp_path / name, tmp_path / ".tmp-mine"
    temporary.write_text("mine")
    if name.endswith("json"):
        foreign.write_text("weeks")
    else:
        foreign.mkdir()
        foreign = foreign / "best.pt"
        foreign.write_text("weeks")
    with pytest.raises(InputError, match=rf"holds something else than a run: {name}, which no run has made"):
        trainer_of(tmp_path).fit(overwrite=overwrite)
    assert foreign.read_text() == "weeks"
    assert temporary.read_text() == "mine"


def test_the_rate_after_the_last_step_may_be_anything():
    # OneCycleLR's line goes on below 0, where no step is taken.
    epochs = 12
    options = {"max_lr": 0.2, "total_steps": epochs, "anneal_strategy": "linear"}
    momentum = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}
    schedule = {"scheduler": "OneCycleLR", "scheduler_options": options}
    trainer = trainer_of(None, model=seeded_model(Plain), epochs=epochs, eval_every=epochs, **momentum, **schedule)
    assert trainer.fit().epochs == epochs


@pytest.mark.usefixtures("compiled")
def test_dropout_of_attention_resumes_bitwise(tmp_path):
    config = ModelConfig(model="gat", hidden=8, heads=2, model_options={"attention_dropout": 0.3})
    check_resume(tmp_path, kind=lambda: build_model(config, community_graph()))


def test_numpy_and_python_random_numbers_resume_bitwise(tmp_path):
    class Noisy(Plain):
        def forward(self, hops, x):
            noise = random.gauss(0, 1) + np.random.standard_normal() if self.training else 0.0
            return super().forward(hops, F.dropout(x + noise, 0.3, self.training))

    # Gaussians come in pairs, of which the second is kept for later: after five epochs there is one.
    check_resume(tmp_path, kind=Noisy, checkpoint_every=5)


def test_a_finished_run_is_finished_again(tmp_path):
    expected = trainer_of(tmp_path).fit()
    result = trainer_of(tmp_path).fit(resume=True)
    assert result.metrics == expected.metrics
    assert result.history == expected.history


def test_a_crash_before_the_first_checkpoint_starts_over(tmp_path):
    expected = trainer_of(tmp_path / "whole").fit()
    with pytest.raises(CrashError):
        trainer_of(tmp_path / "broken", stop_after=2).fit()
    resumed = trainer_of(tmp_path / "broken")
    assert numbers_of(resumed.fit(resume=True)) == numbers_of(expected)
    assert resumed._reporter.messages == ["There is no checkpoint yet; the run starts from its first epoch."]


@pytest.mark.parametrize("damage", ["truncated", "other epoch"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, damage):
    whole = trainer_of(tmp_path / "whole")
    expected = whole.fit()
    with pytest.raises(CrashError):
        trainer_of(tmp_path / "broken", stop_after=10).fit()
    newest = tmp_path / "broken" / "checkpoints" / "epoch-000009.pt"
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-10])
    else:
        newest.rename(newest.with_name("epoch-000008.pt"))
    resumed = trainer_of(tmp_path / "broken")
    result = resumed.fit(resume=True)
    (message,) = resumed._reporter.messages
    assert "checkpoint is damaged" in message
    assert resumed._reporter.info.first_epoch == 7
    assert numbers_of(result) == numbers_of(expected)
    assert_same_bits(weights_of(resumed.model), weights_of(whole.model))


def test_no_whole_checkpoint_is_refused(tmp_path):
    trainer_of(tmp_path).fit()
    for path in tmp_path.glob("checkpoints/*.pt"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged: 2 tried"):
        trainer_of(tmp_path).fit(resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    trainer_of(tmp_path / "one").fit()
    trainer_of(tmp_path / "two", seed=5, epochs=15).fit()
    (tmp_path / "two" / "checkpoints" / "epoch-000015.pt").rename(
        tmp_path / "one" / "checkpoints" / "epoch-000015.pt"
    )
    with pytest.raises(CheckpointError, match="the checkpoint belongs to another run"):
        trainer_of(tmp_path / "one", epochs=15).fit(resume=True)


def test_lost_history_is_refused(tmp_path):
    trainer_of(tmp_path).fit()
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl does not reach the checkpoint"):
        trainer_of(tmp_path).fit(resume=True)


def with_another_value(graph):
    features = graph.features.clone()
    features[17, 3] += 1e-6
    return replace(graph, features=features)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"lr": 0.06}, r"train\.lr was 0\.05, is 0\.06"),
        ({"optimizer": "SGD"}, r"optimizer\.class was Adam, is SGD"),
        ({"scheduler": "ExponentialLR", "scheduler_options": {"gamma": 0.5}}, r"scheduler\.class was None, is Exp"),
        ({"weight_decay": 0.1, "decay": "first-layer"}, r"optimizer\.num_groups was 1, is 2"),
        (
            {"model": TwoLayers(hidden=9)},
            r"model\.tensors\.first\.own\.weight was torch.float32 \[8, 8\], is .* \[9, 8\]",
        ),
        ({"model": Plain()}, r"model\.class was TwoLayers, is Plain"),
        ({"graph": community_graph(60)}, r"graph\.num_vertices was 90, is 60"),
        ({"graph": with_another_value(community_graph())}, r"graph\.features was \w+, is \w+"),
    ],
)
def test_resuming_with_something_else_names_the_first_difference(tmp_path, options, difference):
    trainer_of(tmp_path).fit()
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(CheckpointError, match="the run was started differently: " + difference):
        trainer_of(tmp_path, **options).fit(resume=True)
    assert (tmp_path / "run.json").read_bytes() == before


def test_other_versions_are_told(tmp_path):
    trainer_of(tmp_path).fit()
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace(torch.__version__, "1.0.0"))
    resumed = trainer_of(tmp_path, epochs=13)
    resumed.fit(resume=True)
    assert resumed._reporter.messages == [
        f"The run was started with torch 1.0.0, this is {torch.__version__}: its last bits may differ."
    ]


def test_an_unfinished_run_predicts_with_its_best_weights_so_far(tmp_path):
    with pytest.raises(CrashError):
        trainer_of(tmp_path, stop_after=10, model=ModelConfig(hidden=8)).fit()
    whole = trainer_of(tmp_path / "whole", epochs=9, model=ModelConfig(hidden=8))
    whole.fit()
    assert torch.equal(load_run(tmp_path, device="cpu").predict(community_graph()), whole.predict())


def test_a_changed_model_file_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    text = "from tests.train.runs import Mean\n\n\nclass Mine(Mean):\n    pass\n"
    file.write_text(text)
    trainer_of(tmp_path / "run", model=ModelConfig(model=f"{file}:Mine", hidden=8), epochs=1).fit()
    trainer_of(tmp_path / "run", model=ModelConfig(model=f"{file}:Mine", hidden=8), epochs=2).fit(resume=True)
    file.write_text(text.replace("pass", "accumulator = 'sum'"))
    with pytest.raises(CheckpointError, match=r"model\.file was \w+, is \w+"):
        trainer_of(tmp_path / "run", model=ModelConfig(model=f"{file}:Mine", hidden=8), epochs=2).fit(resume=True)


def test_a_finished_run_that_is_continued_has_no_stale_result(tmp_path):
    trainer_of(tmp_path, epochs=3, model=ModelConfig(hidden=8), weights="last").fit()
    with pytest.raises(CrashError):
        trainer_of(tmp_path, epochs=9, model=ModelConfig(hidden=8), weights="last", stop_after=7).fit(resume=True)
    assert read_run(tmp_path).metrics is None
    assert not (tmp_path / "model.safetensors").exists()
    whole = trainer_of(tmp_path / "whole", epochs=6, model=ModelConfig(hidden=8), weights="last")
    whole.fit()
    assert torch.equal(load_run(tmp_path, device="cpu").predict(community_graph()), whole.predict())


@pytest.mark.parametrize("monitor", ["val/loss", "train/loss"])
def test_more_epochs_are_the_longer_run_where_the_old_end_was_no_evaluation(tmp_path, monitor):
    options = {
        "eval_every": 4,
        "lr": 0.2,
        "monitor": monitor,
        "scheduler": "ReduceLROnPlateau",
        "scheduler_options": {"patience": 0, "factor": 0.5},
    }
    expected = trainer_of(tmp_path / "whole", epochs=30, **options)
    whole = expected.fit()
    short = trainer_of(tmp_path / "more", epochs=10, **options).fit()
    assert short.history[-1].metrics
    assert short.best_epoch in (4, 8)
    more = trainer_of(tmp_path / "more", epochs=30, **options)
    result = more.fit(resume=True)
    assert [(record.loss, record.lr) for record in result.history] == [
        (record.loss, record.lr) for record in whole.history
    ]
    assert (result.best_epoch, result.metrics) == (whole.best_epoch, whole.metrics)
    assert_same_bits(weights_of(more.model), weights_of(expected.model))


def test_monitoring_an_undefined_metric_is_refused():
    graph = community_graph()
    one_class = graph.splits["val"] & (graph.labels == 0)
    graph = replace(graph, splits={**graph.splits, "val": one_class})
    with pytest.raises(InputError, match="the monitored metric is undefined: 'val/roc_auc' has no value"):
        runs.trainer_of(graph=graph, monitor="val/roc_auc").fit()


def test_of_equal_epochs_the_last_one_is_kept_and_patience_still_ends():
    tracker, model = BestTracker("val/accuracy", keep_weights=True, patience=3), nn.Linear(1, 1)
    for epoch, value in enumerate((0.5, 0.6, 0.6, 0.4), start=1):
        torch.nn.init.constant_(model.weight, epoch)
        tracker.update(epoch, {"val": {"accuracy": value}}, model.state_dict)
        assert not tracker.exhausted
    assert (tracker.epoch, float(tracker.weights["weight"])) == (3, 3.0)
    tracker.update(5, {"val": {"accuracy": 0.6}}, model.state_dict)
    assert (tracker.epoch, tracker.exhausted) == (5, True)


def rare_classes():
    """Labels of which untrained models predict about half for each vertex, and trained ones none."""
    labels = torch.zeros(300, 20, dtype=torch.uint8)
    labels[torch.arange(300), torch.randint(20, (300,), generator=torch.Generator().manual_seed(0))] = 1
    return replace(community_graph(300, multi_label=True), labels=labels, num_classes=20)


def test_the_default_monitor_of_rare_classes_keeps_weights_that_are_trained(caplog):
    result = runs.trainer_of(ModelConfig(hidden=8), rare_classes(), lr=0.05).fit()
    scores = [record.metrics["val"]["micro_f1"] for record in result.history]
    assert scores.index(max(scores)) == 0
    assert result.best_epoch > 10
    assert not caplog.records


def test_a_run_whose_first_epoch_is_best_says_so_and_why(caplog):
    result = runs.trainer_of(ModelConfig(hidden=8), rare_classes(), lr=0.05, monitor="val/micro_f1").fit()
    assert result.best_epoch == 1
    best = result.history[0].metrics["val"]["micro_f1"]
    assert f"val/micro_f1 was best in epoch 1 ({best:.4g})" in caplog.text
    assert f"In epoch 20 it is {result.history[-1].metrics['val']['micro_f1']:.4g}" in caplog.text
    assert f"to {result.history[-1].loss:.4g}. Lower lr, monitor another metric" in caplog.text
