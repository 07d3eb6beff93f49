from __future__ import annotations

from pathlib import Path

from sagann.storage import check_dataset, load_graph
from tests.cli.conftest import Invoke


def test_rmat(invoke: Invoke, tmp_path: Path) -> None:
    sizes = ("--vertices", 100, "--edges", 500, "--features", 3, "--classes", 4)
    outcome = invoke("data", "generate", "rmat", tmp_path / "g", *sizes, "--seed", 7, "--name", "power")
    assert outcome.code == 0
    assert outcome.out == f"100 vertices and 500 edges written to {tmp_path / 'g'}\n"
    check_dataset(tmp_path / "g")
    graph = load_graph(tmp_path / "g")
    assert (graph.num_vertices, graph.num_edges, graph.num_features, graph.num_classes) == (100, 500, 3, 4)
    assert graph.name == "power"


def test_sbm_can_be_trained_on(invoke: Invoke, tmp_path: Path) -> None:
    arguments = ("--vertices", 90, "--features", 5, "--classes", 2, "--split", "per-class:10,10")
    assert invoke("data", "generate", "sbm", tmp_path / "g", *arguments).code == 0
    graph = load_graph(tmp_path / "g")
    assert int(graph.splits["train"].sum()) == 20
    assert graph.num_classes == 2


def test_what_stands_there_stays(invoke: Invoke, tmp_path: Path) -> None:
    arguments = ("data", "generate", "sbm", tmp_path / "g", "--vertices", 30, "--features", 2)
    assert invoke(*arguments).code == 0
    refused = invoke(*arguments)
    assert refused.code == 2
    assert "overwrite" in refused.err
    assert invoke(*arguments, "--overwrite").code == 0
