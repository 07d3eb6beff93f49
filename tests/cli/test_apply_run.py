from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import sagann
from sagann.graph import Graph, Topology, rmat_graph, sbm_graph
from sagann.nn import ModelConfig
from sagann.nn.user_model import load_class
from sagann.storage import load_graph, save_graph
from sagann.train import TrainConfig, Trainer, load_run
from tests.cli.conftest import Invoke


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another graph of the same kind, without splits."""
    graph = sbm_graph(40, num_classes=3, average_degree=5, homophily=0.9, num_features=6, feature_noise=0.3, seed=1)
    path = tmp_path_factory.mktemp("data") / "other"
    save_graph(graph, path)
    return path


def test_evaluate_says_what_training_said(invoke: Invoke, trained: Path) -> None:
    outcome = invoke("evaluate", "--run", trained)
    assert outcome.code == 0
    assert outcome.err == ""
    metrics = json.loads((trained / "metrics.json").read_text())
    for split in ("train", "val", "test"):
        row = next(line for line in outcome.out.splitlines() if f" {split} " in line)
        assert f"{metrics[split]['accuracy']:.4f}" in row
        assert f"{metrics[split]['roc_auc']:.4f}" in row


@pytest.fixture(scope="module")
def streamed(blocks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained within a budget."""
    from sagann.cli.main import main

    path = tmp_path_factory.mktemp("runs") / "streamed"
    options = ["--hidden", "8", "--epochs", "3", "--memory", "20kB", "--quiet"]
    assert main(["train", "--data", str(blocks), *options, "--out", str(path)]) == 0
    return path


def test_what_was_trained_within_a_budget_is_used_within_it(
    invoke: Invoke, streamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spills = tmp_path / "spills"
    spills.mkdir()
    budgets = []
    stream = sagann.stream
    monkeypatch.setattr(
        "sagann.runtime.streaming.stream.stream",
        lambda *given, **options: (
            budgets.append((options["budget_bytes"], options["spill"])) or stream(*given, **options)
        ),
    )
    outcome = invoke("evaluate", "--run", streamed, "--spill", spills)
    assert outcome.code == 0
    assert f"{json.loads((streamed / 'metrics.json').read_text())['test']['accuracy']:.4f}" in outcome.out
    assert invoke("predict", "--run", streamed, "--out", tmp_path / "a.csv").code == 0
    out = tmp_path / "b.csv"
    assert invoke("predict", "--run", streamed, "--memory", "1MiB", "--spill", spills, "--out", out).code == 0
    assert [memory for memory, _ in budgets] == [20_000, 20_000, 1 << 20]
    assert [spill == spills for _, spill in budgets] == [True, False, True]
    assert list(spills.iterdir()) == []
    classes = [
        [row["class"] for row in csv.DictReader((tmp_path / name).read_text().splitlines())]
        for name in ("a.csv", "b.csv")
    ]
    assert classes[0] == classes[1]


def test_predict_csv(invoke: Invoke, trained: Path, blocks: Path, tmp_path: Path) -> None:
    outcome = invoke("predict", "--run", trained, "--out", tmp_path / "p.csv")
    assert outcome.code == 0
    assert outcome.out == f"Predictions of 120 vertices written to {tmp_path / 'p.csv'}\n"
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = load_run(trained).predict(load_graph(blocks), probabilities=True)
    assert [int(row["vertex"]) for row in rows] == list(range(120))
    assert [int(row["class"]) for row in rows] == expected.argmax(dim=1).tolist()
    assert [row["class_name"] for row in rows] == [row["class"] for row in rows]
    found = torch.tensor([float(row["probability"]) for row in rows])
    torch.testing.assert_close(found, expected.max(dim=1).values)


def test_classes_have_the_names_that_the_model_was_trained_with(invoke: Invoke, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels, part = np.arange(60) % 2, np.arange(60) % 3
    arrays = {
        "edge_index": generator.integers(0, 60, (2, 300)),
        "features": (np.eye(2)[labels] * 4).astype("f4"),
        "labels": labels,
        "train_mask": part == 0,
        "val_mask": part == 1,
    }
    for name, names in (("a", ["cat", "dog"]), ("b", ["dog", "cat"]), ("c", [])):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        (tmp_path / f"{name}.json").write_text(json.dumps({"class_names": names} if names else {}))
    run = tmp_path / "run"
    assert invoke("train", "--data", tmp_path / "a.npz", "--epochs", 3, "--out", run).code == 0
    found = []
    for name in ("a", "b", "c"):
        out = tmp_path / f"{name}.csv"
        assert invoke("predict", "--run", run, "--data", tmp_path / f"{name}.npz", "--out", out).code == 0
        found.append(out.read_text())
    assert found[0] == found[1] == found[2]
    assert "cat" in found[0]
    # The run keeps them, whatever its dataset says by now.
    (tmp_path / "a.json").write_text(json.dumps({"class_names": ["dog", "cat"]}))
    outcome = invoke("predict", "--run", run, "--out", tmp_path / "later.csv")
    assert (outcome.code, outcome.err) == (0, "")
    assert (tmp_path / "later.csv").read_text() == found[0]


def test_a_dataset_that_has_changed_is_noted(invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(blocks, data)
    assert invoke("train", "--data", data, "--hidden", 4, "--epochs", 1, "--out", run).code == 0
    commands = (("evaluate",), ("predict", "--out", tmp_path / "p.csv", "--overwrite"))
    for command in commands:
        assert invoke(*command, "--run", run).err == ""
    graph = load_graph(blocks)
    save_graph(replace(graph, features=graph.features + 1), data, overwrite=True)
    for command in commands:
        outcome = invoke(*command, "--run", run)
        assert outcome.code == 0
        assert "The dataset has changed since the run was trained on it (features); it is taken" in outcome.err
        assert invoke(*command, "--run", run, "--data", data).err == ""


def test_the_embedded_graph_stays_itself_beside_a_folder_of_its_name(
    invoke: Invoke, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--data demo --out demo` makes one."""
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "--data", "demo", "--hidden", 4, "--epochs", 1, "--out", "demo").code == 0
    said = invoke("evaluate", "--run", "demo")
    assert said.code == 0
    assert invoke("train", "--resume", "--out", "demo", "--epochs", 2).code == 0
    assert invoke("plan", "--config", "demo/config.toml").code == 0
    # A path that is given goes first, as ever.
    refused = invoke("evaluate", "--run", "demo", "--data", "demo")
    assert refused.code == 2
    assert str(tmp_path / "demo") in refused.err


def test_inverse_edges_are_numbered_as_in_training(invoke: Invoke, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(60, (2, 400), generator=generator)
    types, part = torch.randint(3, (400,), generator=generator), torch.arange(60) % 3

    def graph(types: torch.Tensor, count: int) -> Graph:
        return Graph(
            topology=Topology.from_coo(src=src, dst=dst, num_src=60, edge_data={"type": types}),
            features=torch.randn(60, 4, generator=torch.Generator().manual_seed(1)),
            labels=torch.arange(60) % 2,
            num_classes=2,
            num_edge_types=count,
            splits={"train": part == 0, "val": part == 1, "test": part == 2},
        )

    save_graph(graph(types, 3), tmp_path / "typed")
    run = tmp_path / "run"
    arguments = ("--model", "ggnn", "--hidden", 8, "--epochs", 2, "--inverse-edges", "--out", run)
    assert invoke("train", "--data", tmp_path / "typed", *arguments).code == 0
    found = []
    for count in (3, 2):
        save_graph(graph(types.clamp(max=1), count), tmp_path / f"of {count}")
        out = tmp_path / f"{count}.csv"
        assert invoke("predict", "--run", run, "--data", tmp_path / f"of {count}", "--out", out).code == 0
        found.append((out.read_text(), invoke("evaluate", "--run", run, "--data", tmp_path / f"of {count}").out))
    assert found[0][0] == found[1][0]
    assert found[0][1].splitlines()[1:] == found[1][1].splitlines()[1:]


def test_predict_parquet_and_npy_agree(invoke: Invoke, trained: Path, other: Path, tmp_path: Path) -> None:
    for name in ("p.parquet", "p.npy"):
        assert invoke("predict", "--run", trained, "--data", other, "--out", tmp_path / name).code == 0
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    array = np.load(tmp_path / "p.npy", allow_pickle=False)
    assert table.column_names == ["vertex", "class", "class_name", "probability"]
    assert array.dtype.names == ("vertex", "class", "probability")
    for name in array.dtype.names:
        assert np.array_equal(table.column(name).to_numpy(), array[name])
    assert len(array) == 40
    # Nothing was left beside the files.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "p.parquet"]


def multi_label_graph() -> Graph:
    graph = rmat_graph(30, 90, num_features=4, num_classes=2, seed=0)
    labels = torch.randint(2, (30, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return replace(graph, labels=labels, num_classes=3)


def test_multi_label_predictions_have_a_column_per_class(invoke: Invoke, tmp_path: Path) -> None:
    save_graph(multi_label_graph(), tmp_path / "data")
    run = tmp_path / "run"
    assert invoke("train", "--data", tmp_path / "data", "--hidden", 4, "--epochs", 2, "--out", run).code == 0
    for name in ("p.csv", "p.parquet", "p.npy"):
        assert invoke("predict", "--run", run, "--out", tmp_path / name).code == 0
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["vertex", "0", "1", "2"]
    matrix = np.load(tmp_path / "p.npy")
    assert matrix.shape == (30, 3)
    assert np.array_equal(table.column("2").to_numpy(), matrix[:, 2])
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == '"vertex","0","1","2"'


def test_a_run_of_python_is_used_like_one_of_the_command_line(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    graph, config = load_graph(blocks), TrainConfig(epochs=2, device="cpu")
    trainer = Trainer(ModelConfig(hidden=8), graph, config, run_dir=tmp_path / "run")
    accuracy = trainer.fit().metrics["test"]["accuracy"]
    # A graph of Python has a name, and perhaps no file.
    outcome = invoke("evaluate", "--run", tmp_path / "run")
    assert outcome.code == 2
    assert f"trained on a graph named '{graph.name}'" in outcome.err
    assert "--data" in outcome.err
    outcome = invoke("evaluate", "--run", tmp_path / "run", "--data", blocks)
    assert f"gcn on {graph.name}" in outcome.out
    assert f"{accuracy:.4f}" in next(line for line in outcome.out.splitlines() if " test " in line)
    Trainer(ModelConfig(hidden=8), graph, config, run_dir=tmp_path / "named", source=str(blocks)).fit()
    found = tmp_path / "found.npy"
    assert invoke("embed", "--run", tmp_path / "named", "--out", found).err == ""
    np.testing.assert_array_equal(np.load(found), trainer.embed())


def test_a_module_of_python_is_used_where_its_class_is_named(invoke: Invoke, blocks: Path, tmp_path: Path) -> None:
    text = "import torch\nclass Net(torch.nn.Linear):\n  def __init__(self, in_dim, out_dim): super().__init__(in_dim, out_dim)\n"
    (tmp_path / "net.py").write_text(
        text + "  def forward(self, hops, x): return super().forward(x)\nclass Other(Net): pass\n"
    )
    net = load_class(tmp_path / "net.py", "Net")(6, 3)
    run = Trainer(net, load_graph(blocks), TrainConfig(epochs=1, device="cpu"), run_dir=tmp_path / "run").fit()
    command = ("evaluate", "--run", tmp_path / "run", "--data", blocks)
    for named in ((), ("--model", f"{tmp_path}/net.py:Other")):
        outcome = invoke(*command, *named)
        assert outcome.code == 2
        assert "--model FILE.py:Net" in outcome.err
    outcome = invoke(*command, "--model", f"{tmp_path}/net.py:Net")
    assert f"{run.metrics['test']['accuracy']:.4f}" in outcome.out


def values_dataset(path: Path, num_targets: int) -> Graph:
    """A dataset of a regression: targets that a linear model of the features gives, and labels that no target needs."""
    graph = rmat_graph(60, 240, num_features=4, num_classes=2, seed=0)
    weights = torch.randn(4, num_targets, generator=torch.Generator().manual_seed(0))
    graph = replace(graph, targets=graph.features @ weights + 3)
    save_graph(graph, path)
    return graph


def test_a_regression_from_the_dataset_to_the_predictions(invoke: Invoke, tmp_path: Path) -> None:
    data, run, num_targets = tmp_path / "data", tmp_path / "run", 2
    graph = values_dataset(data, num_targets)
    assert f"{num_targets} per vertex, float32" in invoke("data", "info", data).out
    train = ("train", data, "--model", "sage", "--hidden", 8, "--dropout", 0, "--epochs", 60, "--out", run)
    outcome = invoke(*train)
    assert outcome.code == 2
    assert "the graph has answers for several tasks" in outcome.err
    assert "--task" in outcome.err
    assert not run.exists()
    outcome = invoke(*train, "--task", "regression", "--loss", "huber", "--monitor", "val/rmse")
    assert outcome.code == 0, outcome.err
    assert "also has labels of 2 classes; the task 'regression' does not use them" in outcome.err.replace("\n", " ")
    assert "rmse" in outcome.out
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["test"]) == {"loss", "mae", "rmse", "r2"}
    evaluated = invoke("evaluate", "--run", run)
    assert f"{metrics['test']['r2']:.4f}" in evaluated.out
    for name in ("p.csv", "p.parquet", "p.npy"):
        assert invoke("predict", "--run", run, "--out", tmp_path / name).code == 0
    found = np.load(tmp_path / "p.npy")
    assert found.shape == (60, 2)
    assert np.array_equal(found, load_run(run).predict(graph).numpy())
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["vertex", "prediction_0", "prediction_1"]
    assert np.array_equal(table.column("prediction_1").to_numpy(), found[:, 1])
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 61
