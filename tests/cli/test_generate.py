from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rmat", "g", "--vertices", "0", "--edges", "5"], "edges need vertices"),
        (["rmat", "g", "--vertices", "5", "--edges", str(10**30)], "Invalid value for '--edges'"),
        (["rmat", "g", "--vertices", "5", "--edges", str(10**12)], "disk is too small"),
        (["rmat", "g", "--vertices", "5", "--edges", "5", "--a", "0.9"], "quadrant probabilities"),
        (["rmat", "g", "--vertices", "5", "--edges", "5", "--a", "nan"], "quadrant probabilities"),
        (
            ["rmat", "g", "--vertices", "5", "--edges", "5", "--memory", "1kB"],
            "memory_bytes is refused: 1000, expected",
        ),
        (["rmat", "g", "--vertices", "5", "--edges", "5", "--memory", "lots"], "size is not understood"),
        (["rmat", "no/where/g", "--vertices", "5", "--edges", "5"], "no/where"),
        (["sbm", "g", "--homophily", "2"], "parameter of the block model out of range"),
        (["sbm", "g", "--degree", "nan"], "parameter of the block model out of range"),
        (["sbm", "g", "--degree", "inf"], "parameter of the block model out of range"),
        (["sbm", "g", "--vertices", "1000000000", "--degree", "4"], "the work does not fit memory"),
        (["sbm", "g", "--vertices", "50", "--split", "half"], "split is not understood"),
        (["sbm", "g", "--vertices", "50", "--classes", str(10**20)], "Invalid value for '--classes'"),
        (["sbm", "g", "--vertices", "50", "--seed", str(10**40)], "seed"),
    ],
)
def test_refusals(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("data", "generate", *arguments)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise", "1e39"), "feature_noise"),
        (("--noise", "inf"), "feature_noise"),
        (("--split", "random:0,0"), "the training split is empty"),
    ],
)
def test_a_block_model_that_could_not_be_trained_on(
    invoke: Invoke, tmp_path: Path, options: tuple[str, str], message: str
) -> None:
    outcome = invoke("data", "generate", "sbm", tmp_path / "g", "--vertices", 50, "--features", 4, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert list(tmp_path.iterdir()) == []
