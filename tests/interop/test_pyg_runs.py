"""Models of PyG of whole graphs and of links, and from a file on the command line."""

from __future__ import annotations

import copy
import json
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from sagann.cli.main import main
from sagann.errors import LayerError
from sagann.graph import Graph
from sagann.interop import from_pyg_model
from sagann.nn import LinkModel, ModelConfig
from sagann.sampling import hold_out_links
from sagann.storage import save_graph
from sagann.train import TrainConfig, Trainer, load_run
from tests.graphs import edge_index
from tests.interop.pyg_models import WIDTH, pyg_graph
from tests.tolerances import assert_close
from tests.train.graphs_of import rings_and_stars

FILE = """
import torch
from torch import nn
from torch_geometric.nn import GCN, GINConv, GraphSAGE, SAGEConv, global_mean_pool


class Net(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, dropout=0.5):
        super().__init__()
        self.first = SAGEConv(in_channels, hidden_channels)
        self.second = SAGEConv(hidden_channels, out_channels)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = nn.functional.dropout(x, self.dropout, self.training)
        return self.second(x, edge_index)


class OfGraphs(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv = GINConv(nn.Linear(in_channels, hidden_channels))
        self.head = nn.Linear(hidden_channels, out_channels)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


class PerhapsOfGraphs(OfGraphs):
    def forward(self, x, edge_index, batch=None):
        return super().forward(x, edge_index, batch)


class OfData(OfGraphs):
    def forward(self, data):
        return super().forward(data.x, data.edge_index, data.batch)


class Sage(GraphSAGE):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers):
        super().__init__(in_channels, hidden_channels, num_layers, out_channels)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with models of PyG."""
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder."""
    path = tmp_path_factory.mktemp("data") / "tiny"
    save_graph(pyg_graph(dtype=torch.float32), path)
    return path


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Commands print into the test."""
    yield
    capsys.readouterr()


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


# The command line


def test_a_model_from_a_file_is_trained_resumed_evaluated_and_used(
    file: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = f"{file}:Net"
    train = ("train", tiny, "--model", named, "--hidden", WIDTH, "--device", "cpu", "--weights", "last")
    run(*train, "--epochs", 4, "--out", tmp_path / "whole")
    run(*train, "--epochs", 2, "--checkpoint-every", 2, "--out", tmp_path / "cut")
    run(*train, "--epochs", 4, "--checkpoint-every", 2, "--out", tmp_path / "cut", "--resume")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    metrics = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    capsys.readouterr()
    run("evaluate", tmp_path / "whole", "--model", named)
    assert f"{metrics['test']['accuracy']:.4f}" in capsys.readouterr().out
    run("predict", tmp_path / "whole", "--model", named, "--out", tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 31
    run("plan", tiny, "--model", named, "--hidden", WIDTH)
    # With the class, a module, and PyG.
    graph = pyg_graph(dtype=torch.float32)
    predictor = load_run(tmp_path / "whole", model=named, device="cpu")
    found = predictor.predict(graph, probabilities=True)
    net = predictor.model.model
    again = load_run(tmp_path / "whole", model=copy.deepcopy(net), device="cpu").predict(graph, probabilities=True)
    assert torch.equal(again, found)
    with torch.no_grad():
        assert_close(found, net(graph.features, edge_index(graph.topology)).softmax(-1))
    assert next(iter(predictor.model.state_dict())) == "first.lin_l.weight"


# Whole graphs


def pooled(model: nn.Module, graph: Graph) -> Tensor:
    """What a model of PyG gives each graph, in PyG."""
    sizes = graph.graph_ptr.diff()
    batch = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    with torch.no_grad():
        out: Tensor = copy.deepcopy(model).eval()(graph.features, edge_index(graph.topology), batch)
    return out


@pytest.mark.parametrize("name", ["OfGraphs", "PerhapsOfGraphs", "OfData", "Net", "Sage"])
def test_models_of_a_file_learn_graphs(name: str, file: Path, tmp_path: Path) -> None:
    """Models of vertices are pooled; others pool by themselves."""
    graph = rings_and_stars()
    config = ModelConfig(model=f"{file}:{name}", hidden=WIDTH)
    options = TrainConfig(epochs=2, device="cpu", batch_size=16)
    trainer = Trainer(config, graph, options, run_dir=tmp_path, progress=False)
    trainer.fit()
    found = trainer.predict(probabilities=True)
    assert found.shape == (60, 2)
    if name in ("OfGraphs", "PerhapsOfGraphs"):
        assert_close(found, pooled(trainer.model.model, graph).softmax(-1))
    assert torch.equal(load_run(tmp_path, model=config.model, device="cpu").predict(graph), trainer.predict())


def test_a_pool_that_leaves_out_an_empty_last_graph_is_named(file: Path) -> None:
    graph = rings_and_stars()
    ours: Any = from_pyg_model(runpy.run_path(str(file))["OfGraphs"](WIDTH, WIDTH, 2), graph)
    ptr = torch.cat([graph.graph_ptr, graph.graph_ptr[-1:]])
    with pytest.raises(LayerError, match=r"a pool .*last graphs.*60 rows for 61 graphs \(in model OfGraphs\)"):
        ours(ours.prepare(graph).hops(1), graph.features, ptr)


# Links


def test_an_encoder_of_pyg_learns_links(file: Path) -> None:
    graph = replace(pyg_graph(dtype=torch.float32), labels=None, num_classes=0, splits={})
    graph = hold_out_links(graph, negatives=4, seed=0)
    encoder = pyg.GraphSAGE(WIDTH, WIDTH, 2, WIDTH)
    model = LinkModel(from_pyg_model(encoder, graph), WIDTH)
    options = {"epochs": 2, "device": "cpu"}
    trainer = Trainer(model, graph, TrainConfig(**options), progress=False)
    trainer.fit()
    with torch.no_grad():
        rows = copy.deepcopy(encoder).eval()(graph.features, edge_index(graph.topology))
    src, dst = torch.tensor([0, 2]), torch.tensor([1, 3])
    expected = (rows[src] * rows[dst]).sum(-1).sigmoid()
    assert_close(trainer.predict(links=(src, dst), probabilities=True), expected)
    config = ModelConfig(model=f"{file}:Net", hidden=WIDTH)
    Trainer(config, graph, TrainConfig(**options, sample=(4, 4), batch_size=16), progress=False).fit()
