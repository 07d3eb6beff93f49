"""Arguments of foreign types at the entries of the library: refused, never an AttributeError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import sagann
from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig
from sagann.train import Predictor, TrainConfig, Trainer, load_run
from sagann.train.contract import Contract
from tests.train.runs import Plain, community_graph

GRAPH = community_graph()
TOPOLOGY = GRAPH.topology
ONE = torch.tensor([0])


def topology(**changes: Any) -> Topology:
    return Topology(**{"indptr": TOPOLOGY.indptr, "indices": TOPOLOGY.indices, "num_src": 90, **changes})


def predictor(**changes: Any) -> Predictor:
    arguments = {"model": Plain(), "contract": Contract.of(GRAPH), "device": torch.device("cpu"), **changes}
    return Predictor(arguments["model"], arguments["contract"], device=arguments["device"])


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: Graph(topology=None), "Graph.topology"),
        (lambda: replace(GRAPH, labels=[0, 1]), "Graph.labels"),
        (lambda: replace(GRAPH, features=np.eye(90)), "Graph.features"),
        (lambda: replace(GRAPH, graph_ptr=[0, 90]), "Graph.graph_ptr"),
        (lambda: replace(GRAPH, splits=[1]), "Graph.splits"),
        (lambda: replace(GRAPH, splits={"train": [True]}), "Graph.splits"),
        (lambda: replace(GRAPH, num_classes="3"), "Graph.num_classes"),
        (lambda: replace(GRAPH, num_classes=True), "Graph.num_classes"),
        (lambda: replace(GRAPH, num_classes=-1), "Graph.num_classes"),
        (lambda: replace(GRAPH, num_edge_types=None), "Graph.num_edge_types"),
        (lambda: replace(GRAPH, graph_names="ab"), "Graph.graph_names"),
        (lambda: replace(GRAPH, name=None), "Graph.name"),
        (lambda: replace(GRAPH, labels=torch.tensor(3)), "labels and vertices differ in number"),
        (lambda: topology(indptr=[0, 1]), "Topology.indptr"),
        (lambda: topology(indices=np.zeros(1, np.int64)), "Topology.indices"),
        (lambda: topology(num_src=90.0), "Topology.num_src"),
        (lambda: topology(edge_data=[ONE]), "edge data"),
        (lambda: topology(edge_data={"weight": [1.0]}), "edge data 'weight'"),
        (lambda: topology(edge_ids=[1]), "Topology.edge_ids"),
        (lambda: Topology.from_coo(src=[0], dst=ONE, num_src=1), "Topology.from_coo, src"),
        (lambda: Topology.from_coo(src=ONE, dst=None, num_src=1), "Topology.from_coo, dst"),
        (lambda: Topology.from_coo(src=ONE, dst=ONE, num_src=None), "Topology.from_coo, num_src"),
        (lambda: Topology.from_coo(src=ONE, dst=ONE, num_src=1, num_dst="1"), "Topology.from_coo, num_dst"),
        (lambda: Trainer(None, GRAPH), "Trainer.model"),
        (lambda: Trainer(Plain, GRAPH), "Trainer.model"),
        (lambda: Trainer(Plain(), None), "Trainer.graph"),
        (lambda: Trainer(Plain(), GRAPH, {"epochs": 3}), "Trainer.config"),
        (lambda: Trainer(Plain(), GRAPH, run_dir=3), "Trainer.run_dir"),
        (lambda: Trainer(Plain(), GRAPH, TrainConfig(device="cpu")).predict("demo"), "the graph of a prediction"),
        (lambda: predictor(model=None), "Predictor.model"),
        (lambda: predictor(contract=GRAPH), "Predictor.contract"),
        (lambda: predictor(device="cpu"), "Predictor.device"),
        (lambda: predictor().predict(None), "the graph of a prediction"),
        (lambda: predictor().evaluate([GRAPH]), "the graph of a prediction"),
        (lambda: predictor().embed(TOPOLOGY), "the graph of a prediction"),
        (lambda: sagann.load_graph(None), "load_graph"),
        (lambda: sagann.load_graph(GRAPH), "load_graph"),
        (lambda: load_run(None), "run_dir"),
        (lambda: TrainConfig(lr="fast"), "TrainConfig.lr"),
        (lambda: TrainConfig(lr=10**400), "TrainConfig.lr"),
        (lambda: TrainConfig(epochs=None), "TrainConfig.epochs"),
        (lambda: TrainConfig(optimizer=torch.optim.Adam), "TrainConfig.optimizer"),
        (lambda: TrainConfig(optimizer_options=[1]), "TrainConfig.optimizer_options"),
        (lambda: TrainConfig(scheduler=3), "TrainConfig.scheduler"),
        (lambda: TrainConfig(monitor=3), "TrainConfig.monitor"),
        (lambda: TrainConfig(device=torch.device("cpu")), "TrainConfig.device"),
        (lambda: TrainConfig(decay=[]), "TrainConfig.decay"),
        (lambda: TrainConfig(weights=[]), "TrainConfig.weights"),
        (lambda: ModelConfig(model=None), "ModelConfig.model"),
        (lambda: ModelConfig(model=Plain), "ModelConfig.model"),
        (lambda: ModelConfig(hidden="8"), "ModelConfig"),
        (lambda: ModelConfig(dropout=None), "ModelConfig"),
        (lambda: ModelConfig(encoder=3), "ModelConfig.encoder"),
    ],
)
def test_foreign_types_are_named(call: Callable[[], object], where: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert where in str(error.value)
    assert error.value.hint
