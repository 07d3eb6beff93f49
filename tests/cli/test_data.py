"""Commands of datasets: generate, look at, reorder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.storage import check_dataset, load_graph
from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    "by", [("--by", "score", "--score", "wrpr"), ("--by", "metis", "--parts", "4")], ids=lambda by: " ".join(by)
)
def test_results_of_a_reordered_dataset_come_in_the_original_order(
    invoke: Invoke, blocks: Path, trained: Path, tmp_path: Path, by: tuple[str, ...]
) -> None:
    if "metis" in by:
        pytest.importorskip("pymetis")
    data = tmp_path / "data"
    assert invoke("data", "reorder", blocks, data, *by).code == 0
    assert "original ids are kept" in invoke("data", "info", data).out
    for each in (data, "demo"):
        assert invoke("data", "check", each).out == f"{each} is sound.\n"
    given, reordered = (load_graph(each) for each in (blocks, data))
    assert not torch.equal(reordered.original_ids, torch.arange(120))
    assert torch.equal(reordered.features, given.features[reordered.original_ids])
    # A model gives a vertex the same result in either dataset.
    results = {}
    for name, source in (("given", blocks), ("reordered", data)):
        for command, file in (("predict", "p.npy"), ("predict", "p.csv"), ("embed", "e.npy")):
            out = tmp_path / f"{name}-{file}"
            assert invoke(command, "--run", trained, "--data", source, "--out", out).code == 0
            results[name, file] = out
    found, expected = (np.load(results[name, "e.npy"]) for name in ("reordered", "given"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found, expected = (np.load(results[name, "p.npy"]) for name in ("reordered", "given"))
    assert found["vertex"].tolist() == list(range(120))
    assert np.array_equal(found["class"], expected["class"])
    classes = [
        [line.split(",")[:2] for line in results[name, "p.csv"].read_text().splitlines()]
        for name in ("reordered", "given")
    ]
    assert classes[0] == classes[1]


def test_rmat(invoke: Invoke, tmp_path: Path) -> None:
    sizes = ("--vertices", 100, "--edges", 500, "--features", 3, "--classes", 4)
    outcome = invoke("data", "generate", "rmat", tmp_path / "g", *sizes, "--seed", 7, "--name", "power")
    assert outcome.code == 0
    assert outcome.out == f"100 vertices and 500 edges written to {tmp_path / 'g'}\n"
    check_dataset(tmp_path / "g")
    graph = load_graph(tmp_path / "g")
    assert (graph.num_vertices, graph.num_edges, graph.num_features, graph.num_classes) == (100, 500, 3, 4)
    assert graph.name == "power"
    assert invoke("data", "generate", "sbm", tmp_path / "g", "--vertices", 30, "--overwrite").code == 0
