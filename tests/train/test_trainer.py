from __future__ import annotations

import json
import math
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

import pytest
import torch

from sagann.errors import CheckpointError, DatasetError, InputError, LayerError
from sagann.nn import ModelConfig
from sagann.storage import check_dataset, open_graph, save_graph
from sagann.train import TrainConfig, Trainer, load_run, read_run
from sagann.train.metrics import KINDS
from tests.train.runs import (
    Plain,
    TwoLayers,
    assert_same_bits,
    community_graph,
    numbers_of,
    predictor_of,
    seeded_model,
    trainer_of,
    values_graph,
    weights_of,
    written_lines,
)

pytestmark = pytest.mark.usefixtures("naive")


def test_training_learns_what_features_alone_do_not_tell():
    graph = community_graph(300)
    trainer = trainer_of(graph=graph, epochs=60)
    before = trainer.evaluate()["test"]["accuracy"]
    result = trainer.fit()
    from_features = trainer_of(seeded_model(Plain), graph, epochs=200).fit()
    assert before < 0.6
    assert result.metrics["test"]["accuracy"] > 0.9
    assert result.metrics["test"]["accuracy"] > from_features.metrics["test"]["accuracy"] + 0.1
    assert set(result.metrics) == {"train", "val", "test"}
    assert all(set(found) == set(KINDS["classification"].metrics) for found in result.metrics.values())
    assert result.metrics == trainer.evaluate()
    assert result.epochs == len(result.history) == 60
    assert result.epoch_s == statistics.median(record.epoch_s for record in result.history)
    assert result.peak_rss_bytes > 50 * 2**20


def test_regression():
    graph = values_graph(300)
    trainer = trainer_of(ModelConfig(model="sage", hidden=32, dropout=0.0), graph, epochs=150)
    result = trainer.fit()
    assert trainer.monitor == "val/loss"
    assert all(set(found) == set(KINDS["regression"].metrics) for found in result.metrics.values())
    assert result.metrics["test"]["r2"] > 0.9
    assert set(result.history[0].metrics["val"]) == {"loss", "mae"}
    best = min(record.metrics["val"]["loss"] for record in result.history)
    assert result.metrics["val"]["loss"] == best
    predicted, test = trainer.predict(), graph.splits["test"]
    assert (predicted.dtype, predicted.shape) == (torch.float32, (300,))
    assert float((predicted - graph.targets)[test].abs().mean()) == pytest.approx(result.metrics["test"]["mae"])
    with pytest.raises(InputError, match="a regression has no probabilities"):
        trainer.predict(probabilities=True)


def absolute(outputs, targets):
    return (outputs - targets).abs()


def test_a_loss_of_ones_own(tmp_path):
    model, graph = ModelConfig(hidden=8), values_graph()
    named = trainer_of(model, graph, epochs=3, loss="mae").fit()
    own = trainer_of(model, graph, epochs=3, loss=absolute, run_dir=tmp_path).fit()
    assert [record.loss for record in own.history] == [record.loss for record in named.history]
    # A run folder has the name of the function only.
    assert read_run(tmp_path).loss.name == "(absolute)"
    found = load_run(tmp_path, loss=absolute).evaluate(graph)
    assert found == own.metrics
    without = {
        split: {name: value for name, value in each.items() if name != "loss"} for split, each in found.items()
    }
    assert load_run(tmp_path).evaluate(graph) == without


def test_a_run_is_resumed_with_its_loss_only(tmp_path):
    graph = community_graph()
    options = {"graph": graph, "run_dir": tmp_path, "class_weights": "balanced"}
    trainer_of(epochs=2, **options).fit()
    whole = trainer_of(epochs=4, graph=graph, class_weights="balanced").fit()
    assert numbers_of(trainer_of(epochs=4, **options).resume()) == numbers_of(whole)
    run = load_run(tmp_path, model=seeded_model())
    assert run.evaluate(graph) == whole.metrics
    with pytest.raises(CheckpointError, match=r"loss\.class_weights was \[.*\], is \[\]"):
        trainer_of(epochs=6, graph=graph, run_dir=tmp_path).resume()
    own = trainer_of(epochs=6, graph=graph, run_dir=tmp_path, loss=margins)
    with pytest.raises(CheckpointError, match=r"loss\.name was cross_entropy, is \(margins\)"):
        own.resume()


def margins(outputs, labels):
    return torch.nn.functional.multi_margin_loss(outputs, labels, reduction="none")


def test_gradients_are_clipped():
    before, after = seeded_model(Plain), seeded_model(Plain)
    trainer_of(after, epochs=1, weight_decay=0.0, optimizer="SGD", lr=1.0, clip_norm=0.01).fit()
    steps = [a - b for a, b in zip(after.parameters(), before.parameters(), strict=True)]
    assert torch.cat([step.detach().flatten() for step in steps]).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_same_seed_is_bitwise_the_same_run():
    first, second = seeded_model(), seeded_model()
    torch.manual_seed(1)
    one = trainer_of(first, seed=3).fit()
    torch.manual_seed(2)
    two = trainer_of(second, seed=3).fit()
    assert numbers_of(one) == numbers_of(two) != numbers_of(trainer_of(seed=4).fit())
    assert one.metrics == two.metrics
    assert_same_bits(weights_of(first), weights_of(second))


def test_trainers_in_threads_draw_the_numbers_that_each_draws_alone():
    begin = threading.Barrier(2)

    def weights_after(seed, together=True):
        if together:
            begin.wait(timeout=60)
        trainer = trainer_of(ModelConfig(hidden=8), epochs=4, seed=seed)
        trainer.fit()
        return weights_of(trainer.model)

    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as threads:
        # The engine is that of the context.
        runs = [threads.submit(copy_context().run, weights_after, seed) for seed in (1, 2)]
        found = [run.result() for run in runs]
    assert torch.equal(torch.get_rng_state(), before)
    for seed, weights in zip((1, 2), found, strict=True):
        assert_same_bits(weights, weights_after(seed, together=False))


@pytest.mark.usefixtures("compiled")
def test_evaluation_does_not_change_training():
    often, seldom = seeded_model(), seeded_model()
    trainer_of(often, epochs=12, weights="last").fit()
    trainer_of(seldom, epochs=12, weights="last", eval_every=5).fit()
    assert_same_bits(weights_of(often), weights_of(seldom))


def test_schedulers_are_stepped_once_per_epoch():
    options = {"step_size": 2, "gamma": 0.5}
    result = trainer_of(epochs=6, scheduler="StepLR", scheduler_options=options, lr=0.4).fit()
    assert [record.lr for record in result.history] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]


def test_plateau_follows_the_monitored_metric():
    options = {"patience": 2, "factor": 0.5}
    result = trainer_of(
        seeded_model(Plain), epochs=12, lr=1e-6, scheduler="ReduceLROnPlateau", scheduler_options=options
    ).fit()
    assert [record.lr for record in result.history][:8] == [1e-6] * 4 + [5e-7] * 3 + [2.5e-7]


def test_callables_take_the_place_of_names():
    decays = []

    def groups(model, weight_decay):
        decays.append(weight_decay)
        return [{"params": list(model.parameters())}]

    result = trainer_of(
        epochs=3,
        weight_decay=0.125,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
        param_groups=groups,
    ).fit()
    assert set(decays) == {0.125}
    assert [record.lr for record in result.history] == [0.3, 0.15, 0.075]


def test_a_loss_that_is_no_number_stops_training():
    class Breaks(Plain):
        calls = 0

        def forward(self, hops, x):
            self.calls += self.training
            return super().forward(hops, x) * (math.nan if self.calls == 3 and self.training else 1.0)

    trainer = trainer_of(seeded_model(Breaks))
    message = r"training diverged: the training loss of epoch 3 is nan \(in optimizer Adam with lr 0.01\). Lower lr"
    with pytest.raises(InputError, match=message):
        trainer.fit()
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())


def test_an_epsilon_that_half_precision_has_not_is_named_where_training_diverges():
    def fit(dtype, **options):
        return trainer_of(seeded_model(Plain).to(dtype), epochs=3, optimizer_options=options).fit()

    with pytest.raises(
        InputError, match=r"training diverged: .*eps of the optimizer, 1e-08, is 0 in torch\.float16: set eps to"
    ):
        fit(torch.float16)
    assert fit(torch.float16, eps=1e-4).history[-1].loss < fit(torch.bfloat16).history[0].loss


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer_options": {"betas": [0.9]}},
        {"optimizer_options": {"capturable": True}},
        {"scheduler": "LambdaLR", "scheduler_options": {"lr_lambda": 0.5}},
        {"scheduler": "ReduceLROnPlateau", "scheduler_options": {"patience": "long"}},
    ],
)
def test_options_that_torch_finds_out_late_are_explained(options):
    with pytest.raises(InputError, match=r"torch refuses the (optimizer|scheduler): "):
        trainer_of(seeded_model(Plain), **options).fit()


@pytest.mark.parametrize(("what", "argument"), [("optimizer", "groups"), ("scheduler", "optimizer")])
def test_what_the_trainer_makes_itself_is_not_taken_ready_made(what, argument):
    model = seeded_model()
    made = torch.optim.Adam(model.parameters())
    made = made if what == "optimizer" else torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    name = type(made).__name__
    hint = rf"Pass {what}=lambda {argument}: {name}\({argument}, \.\.\.\), or its name as TrainConfig"
    with pytest.raises(
        InputError, match=rf"a {name} is given, expected a function \(in Trainer\.{what}\)\. {hint}"
    ):
        Trainer(model, community_graph(), **{what: made})


def test_the_run_folder(tmp_path):
    given = {
        "epochs": 12,
        "checkpoint_every": 5,
        "seed": 9,
        "run_dir": tmp_path / "run",
        "source": "data/communities",
    }
    result = trainer_of(ModelConfig(model="gcn", hidden=8), **given).fit()
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # Whom the umask lets may read the weights too.
    assert len({(tmp_path / "run" / name).stat().st_mode for name in ("run.json", "model.safetensors")}) == 1
    assert (found["model"], found["data"]) == ("gcn", "data/communities")
    assert (found["num_vertices"], found["num_edges"], found["epochs"]) == (90, 540, 12)
    assert (found["epoch_s"], found["peak_rss_bytes"]) == (result.epoch_s, result.peak_rss_bytes)
    assert {split: found[split] for split in ("train", "val", "test")} == result.metrics

    lines = written_lines(tmp_path / "run")
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert set(lines[0]) == {
        "epoch", "loss", "epoch_s", "lr", "num_edges", "train/loss", "train/accuracy", "val/loss", "val/accuracy",
    }  # fmt: skip
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints == ["epoch-000010.pt", "epoch-000012.pt"]


def test_a_file_in_place_of_the_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="the run folder cannot be made: FileExistsError"):
        trainer_of(epochs=2, run_dir=tmp_path / "file").fit()


def test_resume_needs_a_run_folder():
    with pytest.raises(CheckpointError, match="nothing to resume: the Trainer has no run folder"):
        trainer_of().resume()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None, "num_classes": 0}, "the graph has nothing to learn: neither labels nor targets"),
        ({"splits": {}}, "no vertex to train on: the split 'train' of vertices is missing"),
        ({"splits": {"train": torch.zeros(90, dtype=torch.bool)}}, "0 vertices, at least 1 is needed"),
    ],
)
def test_a_graph_that_cannot_be_trained_on_is_refused_before_training(change, message):
    with pytest.raises(InputError, match=message):
        trainer_of(graph=replace(community_graph(), **change))


class Changed(Plain):
    """A model with another forward pass."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, hops, x):
        return self.change(self, x)


def needing(model, x):
    out = model.linear(x).sigmoid()
    doubled = out * 2
    return doubled + out.add_(1)


CHANGED_FEATURES = "overwrites its input: the features were changed in place 1 times .*in model Changed.*x.clone"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda model, x: model.linear(x).detach(), LayerError, "cannot be differentiated: no gradient leads from it .*in model Changed"),
        (needing, LayerError, "overwrites a value that its gradient needs.*in model Changed"),
        (lambda model, x: model.linear(x.mul_(2)), LayerError, CHANGED_FEATURES),
        (lambda model, x: model.linear(x.mul_(2) if model.training else x), LayerError, CHANGED_FEATURES),
        # Vertex 7 is measured at the end only.
        (lambda model, x: model.linear(x).index_fill(0, torch.tensor([7]), math.nan), InputError, "the model's output is not finite: vertex 7 and 0 more"),
        # Errors of the user's model are left as they are.
        (lambda model, x: x["features"] if model.training else model.linear(x), IndexError, None),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_trained_is_refused_and_nothing_is_saved(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        trainer_of(seeded_model(Changed, change=change), epochs=2, run_dir=tmp_path).fit()
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("array", "when"), [("indptr", "before"), ("indices", "after")])
def test_a_model_that_overwrites_the_edges_is_refused_and_the_dataset_stays(array, when, tmp_path):
    class Moves(TwoLayers):
        def forward(self, hops, x):
            if when == "before":
                getattr(hops[0], array).mul_(1 << 20)
            result = super().forward(hops, x)
            if when == "after":
                # The backward pass would read rows at these ids.
                getattr(hops[0], array).mul_(1 << 20)
            return result

    save_graph(community_graph(), tmp_path / "data")
    trainer = trainer_of(seeded_model(Moves), graph=open_graph(tmp_path / "data"))
    message = rf"edges of a topology were overwritten.*\(in Topology.{array}\).*topology.{array}.clone"
    with pytest.raises(LayerError, match=message):
        trainer.fit()
    check_dataset(tmp_path / "data")


def test_features_made_in_inference_mode_predict():
    graph = community_graph()
    with torch.inference_mode():
        features = graph.features.clone()
    predicted = trainer_of(seeded_model(Plain), graph=replace(graph, features=features)).predict()
    assert predicted.shape == (graph.num_vertices,)


def test_an_operator_without_reproducible_form_is_explained():
    class Refused(Plain):
        def forward(self, hops, x):
            if self.training and torch.are_deterministic_algorithms_enabled():
                raise RuntimeError("cumsum does not have a deterministic implementation, but you set ...\nmore")
            return super().forward(hops, x)

    with pytest.raises(InputError, match="an operator of the model is not reproducible: cumsum does not have"):
        trainer_of(seeded_model(Refused)).fit()
    trainer_of(seeded_model(Refused), deterministic=False, epochs=1).fit()


def test_a_graph_that_was_checked_before_is_checked_for_its_labels_and_splits_only():
    graph = community_graph()
    features = graph.features.clone()
    features[3, 1] = float("nan")
    wrong = replace(graph, features=features)
    with pytest.raises(InputError, match=r"feature is not finite: nan in column 1 .*vertex 3"):
        Trainer(ModelConfig(hidden=8), wrong, TrainConfig(device="cpu"))
    Trainer(ModelConfig(hidden=8), wrong, TrainConfig(device="cpu"), validate=False)
    labels = torch.full_like(graph.labels, graph.num_classes)
    with pytest.raises(InputError, match="label out of range"):
        Trainer(ModelConfig(hidden=8), replace(graph, labels=labels), TrainConfig(device="cpu"), validate=False)


def test_a_flipped_bit_is_refused_unless_the_graph_counts_as_checked(tmp_path):
    save_graph(community_graph(), tmp_path / "g")
    path = tmp_path / "g" / "features.npy"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    graph = open_graph(tmp_path / "g")
    with pytest.raises(DatasetError, match=r"array file is damaged: .*features\.npy"):
        Trainer(ModelConfig(hidden=8), graph, TrainConfig(device="cpu"))
    with pytest.raises(DatasetError, match="array file is damaged"):
        predictor_of(seeded_model(), graph).predict(graph)
    Trainer(ModelConfig(hidden=8), graph, TrainConfig(device="cpu"), validate=False)
    Trainer(ModelConfig(hidden=8), open_graph(tmp_path / "g", verify=False), TrainConfig(device="cpu"))
