"""The public surface: its names are frozen, and arguments of foreign types are refused at its entries, never an AttributeError."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sagann
from sagann import graph, nn, saga
from sagann.errors import InputError
from sagann.graph import Graph, Topology
from sagann.nn import ModelConfig
from sagann.train import Predictor, TrainConfig, Trainer, load_run
from sagann.train.contract import Contract
from tests.train.runs import Plain, community_graph

PUBLIC = {
    "CheckpointError",
    "DatasetError",
    "Edge",
    "GNN",
    "Graph",
    "GraphBatches",
    "InputError",
    "LayerError",
    "MiniBatches",
    "ModelConfig",
    "SagaLayer",
    "SagannError",
    "Topology",
    "TrainConfig",
    "Trainer",
    "__version__",
    "build_model",
    "load_dataset",
    "load_graph",
    "load_run",
    "open_graph",
    "save_graph",
    "stream",
    "typed_linear",
}


def test_public_names_are_these_and_exist() -> None:
    assert set(sagann.__all__) == PUBLIC
    assert len(PUBLIC) <= 40
    for name in PUBLIC:
        assert getattr(sagann, name) is not None
    assert set(dir(sagann)) >= PUBLIC


def test_modules_are_there_and_imported_when_they_are_used() -> None:
    code = (
        "import sys, sagann; before = 'sagann.interop' in sys.modules or 'sagann.nn' in sys.modules; "
        "print(before, sagann.interop.from_pyg.__name__, sagann.nn.GCN.__name__, set(sagann._MODULES) <= set(dir(sagann)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False from_pyg GCN True\n"


def test_type_checkers_may_read_the_annotations() -> None:
    assert (Path(sagann.__file__).parent / "py.typed").is_file()


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(sagann, "Sagalayer")


def test_import_starts_nothing_and_is_fast() -> None:
    # Best of three, because other work on the machine only ever adds time.
    code = (
        "import torch, time, threading; t = time.perf_counter(); import sagann; "
        "print(time.perf_counter() - t, threading.active_count())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    seconds, threads = min((float(run.stdout.split()[0]), int(run.stdout.split()[1])) for run in runs)
    assert seconds <= 0.3
    assert threads == 1


def test_the_core_imports_no_slow_package_before_it_is_used() -> None:
    code = (
        "import sys, sagann; sagann.SagaLayer; sagann.Graph; sagann.GNN; "
        "print([name for name in ('numba', 'pyarrow', 'rich', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


GRAPH = community_graph()
TOPOLOGY = GRAPH.topology
WEIGHED = TOPOLOGY.with_edge_data(weight=torch.ones(GRAPH.num_edges, 1))
NONE, ONE = torch.empty(0, dtype=torch.int64), torch.tensor([0])


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
        (lambda: replace(GRAPH, splits=[1]), "Graph.splits"),
        (lambda: replace(GRAPH, num_classes="3"), "Graph.num_classes"),
        (lambda: replace(GRAPH, graph_names="ab"), "Graph.graph_names"),
        (lambda: replace(GRAPH, labels=torch.tensor(3)), "labels and vertices differ in number"),
        (lambda: topology(indptr=[0, 1]), "Topology.indptr"),
        (lambda: topology(num_src=90.0), "Topology.num_src"),
        (lambda: topology(edge_data=[ONE]), "edge data"),
        (lambda: Topology.from_coo(src=NONE, dst=NONE, num_src=-1), "Topology.from_coo, num_src"),
        (lambda: replace(GRAPH, features=torch.ones(90)), "features are no matrix"),
        (
            lambda: graph.normalise_features(replace(GRAPH, features=torch.ones(90, 2).long())),
            "features of another type",
        ),
        (lambda: graph.normalise(Graph(topology=WEIGHED), "row"), "expected a number per edge"),
        (lambda: graph.add_self_loops(GRAPH, fill=1.0), "add_self_loops, fill"),
        (lambda: graph.random_split(GRAPH, seed=0.5), "(in seed)"),
        (lambda: graph.edge_split(TOPOLOGY, seed=0, ids=ONE), "edge_split, ids"),
        (lambda: graph.rmat_graph(1e3, 1e4, seed=0), "num_vertices is out of range: 1000.0"),
        (lambda: sagann.save_graph(TOPOLOGY, "graph"), "save_graph"),
        (lambda: nn.build_model("gcn", GRAPH), "build_model, config"),
        (lambda: nn.GNN([nn.SAGE(4, 3)], dropout="half"), "dropout = 'half'"),
        (lambda: nn.attention_weights(nn.GAT(4, 3), TOPOLOGY, torch.ones(3, 4)), "vertex features do not fit"),
        (lambda: saga.set_engine("naive"), "set_engine"),
        (lambda: Topology.from_coo(src=ONE, dst=ONE, num_src=1, edge_data=torch.ones(2)), "edge data"),
        (lambda: topology(edge_data={"weight": [1.0]}), "edge data 'weight'"),
        (lambda: Topology.from_coo(src=[0], dst=ONE, num_src=1), "Topology.from_coo, src"),
        (lambda: Trainer(None, GRAPH), "Trainer.model"),
        (lambda: Trainer(Plain(), None), "Trainer.graph"),
        (lambda: Trainer(Plain(), GRAPH, {"epochs": 3}), "Trainer.config"),
        (lambda: predictor(model=None), "Predictor.model"),
        (lambda: predictor(contract=GRAPH), "Predictor.contract"),
        (lambda: predictor().predict(None), "the graph of a prediction"),
        (lambda: sagann.load_graph(None), "load_graph"),
        (lambda: sagann.load_dataset(3), "load_dataset.name"),
        (lambda: load_run(None), "run_dir"),
        (lambda: TrainConfig(lr="fast"), "TrainConfig.lr"),
        (lambda: TrainConfig(epochs=None), "TrainConfig.epochs"),
        (lambda: TrainConfig(optimizer_options=[1]), "TrainConfig.optimizer_options"),
        (lambda: TrainConfig(device=torch.device("cpu")), "TrainConfig.device"),
        (lambda: TrainConfig(decay=[]), "TrainConfig.decay"),
        (lambda: ModelConfig(model=Plain), "ModelConfig.model"),
        (lambda: ModelConfig(hidden="8"), "ModelConfig"),
    ],
)
def test_foreign_types_are_named(call: Callable[[], object], where: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert where in str(error.value)
    assert error.value.hint
