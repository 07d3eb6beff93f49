from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sagann.errors import CheckpointError, InputError
from sagann.nn import ModelConfig
from sagann.train import TrainConfig, Trainer, load_run, read_run
from sagann.train.streamed import Streaming
from tests.tolerances import assert_close
from tests.train.runs import CrashError, Heard, TwoLayers, community_graph, seeded_model, trainer_of

pytestmark = pytest.mark.usefixtures("naive")

USERS_LAYER = """
from torch import nn
from sagann.saga import SagaLayer

class Mine(SagaLayer):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)

    def apply_vertex(self, vertex, accum):
        return self.linear(vertex + accum)
"""


def train(run_dir, model=None, graph=None, **options):
    trainer = trainer_of(
        model or ModelConfig(model="gcn", hidden=8), graph, run_dir=run_dir, **{"epochs": 8, **options}
    )
    return trainer, trainer.fit()


def test_a_run_is_reopened_as_it_ended(tmp_path):
    trainer, result = train(tmp_path, source="data/x.npz")
    run = read_run(tmp_path)
    assert run.model_config == ModelConfig(model="gcn", hidden=8)
    assert run.train_config == TrainConfig(epochs=8, device="cpu")
    assert (run.model, run.data) == ("gcn", "data/x.npz")
    assert run.metrics["val"] == result.metrics["val"]
    with pytest.raises(CheckpointError, match="the run was trained with another model: 'gin', the run's is 'gcn'"):
        load_run(tmp_path, model="gin")
    predictor = load_run(tmp_path, device="cpu")
    # Threads that predict do not switch it back for one another.
    assert not predictor.model.training
    graph = community_graph()
    assert torch.equal(predictor.predict(graph), trainer.predict())
    assert torch.equal(predictor.embed(graph), trainer.embed())
    assert predictor.evaluate(graph) == result.metrics
    assert predictor.predict(community_graph(30)).shape == (30,)


def test_a_run_within_a_budget_is_reopened_within_it(tmp_path):
    trainer, result = train(tmp_path / "run", memory="30kB", spill=str(tmp_path))
    graph = community_graph()
    predictor = load_run(tmp_path / "run", device="cpu")
    assert predictor.streaming == Streaming(memory_bytes=30_000, spill=tmp_path, trains=False)
    # Fewer intervals than in training, so sums of another order.
    assert_close(predictor.predict(graph, probabilities=True), trainer.predict(probabilities=True))
    for split, metrics in predictor.evaluate(graph).items():
        assert metrics == pytest.approx(result.metrics[split], rel=1e-5)
    predictor.release()
    found = load_run(tmp_path / "run", device="cpu", memory="1MiB", spill=str(tmp_path / "other")).streaming
    assert found == Streaming(memory_bytes=1 << 20, spill=tmp_path / "other", trains=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": ""}, "load_run.memory"),
        ({"memory": 5}, "load_run.memory"),
        ({"spill": 5}, "load_run.spill"),
        ({"model": TwoLayers}, "load_run.model"),
    ],
)
def test_what_is_no_size_folder_or_module_is_refused(tmp_path, given, said):
    train(tmp_path, epochs=1)
    with pytest.raises(InputError, match=said):
        load_run(tmp_path, device="cpu", **given)
    assert load_run(tmp_path, device="cpu", memory="1MiB", spill=tmp_path).streaming.spill == tmp_path


def test_a_run_that_chose_its_budget_is_reopened_within_it(tmp_path):
    train(tmp_path)
    assert load_run(tmp_path, device="cpu").streaming is None
    described = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(described | {"automatic_memory_bytes": 40_000}))
    found = load_run(tmp_path, device="cpu").streaming
    spill = Path(tempfile.gettempdir())
    assert found == Streaming(memory_bytes=40_000, spill=spill, is_automatic=True, trains=False)
    assert load_run(tmp_path, device="cpu", memory="1MiB").streaming.memory_bytes == 1 << 20


def test_a_run_has_the_names_of_its_graph(tmp_path):
    graph = replace(community_graph(), class_names=("a", "b", "c"), feature_names=tuple("pqrstuvw"))
    train(tmp_path, graph=graph, epochs=1)
    assert read_run(tmp_path).class_names == ("a", "b", "c")
    predictor = load_run(tmp_path, device="cpu")
    for apply in (predictor.predict, predictor.evaluate, predictor.embed):
        apply(graph)
        with pytest.raises(InputError, match="feature 0 is 'q', the model expects 'p'"):
            apply(replace(graph, feature_names=tuple("qprstuvw")))


@pytest.mark.parametrize("model", ["gcn", "residual-gcn"])
def test_models_for_graphs_without_features_are_reopened(tmp_path, model):
    graph = replace(community_graph(), features=None)
    trainer, _ = train(tmp_path, ModelConfig(model=model, hidden=8), graph, epochs=2)
    assert torch.equal(load_run(tmp_path, device="cpu").predict(graph), trainer.predict())


def test_a_file_that_a_run_folder_names_is_executed_only_when_named_again(tmp_path):
    (tmp_path / "mine.py").write_text(USERS_LAYER)
    train(tmp_path / "run", ModelConfig(model=f"{tmp_path}/mine.py:Mine", hidden=8), epochs=1)
    (tmp_path / "mine.py").write_text(
        f"from pathlib import Path\nPath(r'{tmp_path}/executed').touch()\n{USERS_LAYER}"
    )
    with pytest.raises(CheckpointError, match=r"executed only where it is named again.*pass model='"):
        load_run(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"the run was trained with another model: 'mine.py:Other', the run's"
    ):
        load_run(tmp_path / "run", model="mine.py:Other")
    assert not (tmp_path / "executed").exists()
    load_run(tmp_path / "run", model=f"{tmp_path}/mine.py:Mine")
    assert (tmp_path / "executed").exists()


def test_a_module_of_the_users_own_is_passed_again(tmp_path):
    trainer, _ = train(tmp_path, seeded_model())
    assert read_run(tmp_path).model == "TwoLayers"
    with pytest.raises(InputError, match="the run's model cannot be built from its folder: it was a TwoLayers"):
        load_run(tmp_path)
    predictor = load_run(tmp_path, model=seeded_model(seed=9), device="cpu")
    assert torch.equal(predictor.predict(community_graph()), trainer.predict())


def test_a_model_with_another_dropout_is_another_run(tmp_path):
    train(tmp_path, ModelConfig(hidden=8, dropout=0.5), epochs=1)
    with pytest.raises(CheckpointError, match=r"model\.config\.dropout was 0\.5, is 0\.0"):
        trainer_of(ModelConfig(hidden=8, dropout=0.0), epochs=1, run_dir=tmp_path).resume()


def test_weights_of_another_model_are_refused(tmp_path):
    train(tmp_path, seeded_model())
    with pytest.raises(
        CheckpointError, match=r"the weights are of another model: .* first\.own\.weight: .*\[8, 8\].*\[5, 8\]"
    ):
        load_run(tmp_path, model=TwoLayers(hidden=5))


def test_a_run_without_weights_is_refused(tmp_path):
    trainer = Trainer(ModelConfig(hidden=8), community_graph(), TrainConfig(), run_dir=tmp_path, reporter=Heard(1))
    with pytest.raises(CrashError):
        trainer.fit()
    assert read_run(tmp_path).metrics is None
    with pytest.raises(CheckpointError, match="the run has no weights yet"):
        load_run(tmp_path)


def test_weights_that_changed_on_the_disk_are_refused(tmp_path):
    train(tmp_path, epochs=2)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    # The lowest bit of the last weight: still a sound safetensors file.
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged: checksum .*Resume the run"):
        load_run(tmp_path)
    trainer_of(ModelConfig(model="gcn", hidden=8), epochs=2, run_dir=tmp_path).fit(resume=True)
    load_run(tmp_path)


class Counts(TwoLayers):
    """Keeps what is no tensor, and tensors inside it."""

    def __init__(self):
        super().__init__()
        self.calls = {"forward": 0, "last": torch.zeros(2)}

    def forward(self, hops, x):
        self.calls = {"forward": self.calls["forward"] + 1, "last": self.calls["last"] + 1}
        return super().forward(hops, x)

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = state


def test_the_extra_state_of_a_module_is_kept(tmp_path):
    model = Counts()
    trainer, _ = train(tmp_path, model)
    calls, expected = model.calls["forward"], trainer.predict()
    reopened = Counts()
    predictor = load_run(tmp_path, model=reopened, device="cpu")
    assert 0 < reopened.calls["forward"] <= calls
    assert reopened.calls["last"].tolist() == [reopened.calls["forward"]] * 2
    assert torch.equal(predictor.predict(community_graph()), expected)
