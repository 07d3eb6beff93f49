from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from sagann.cli.import_run import detect_format
from sagann.errors import DatasetError
from sagann.storage import check_dataset, load_graph
from tests.cli.conftest import Invoke

EDGES = [(0, 1, 2.5, 0), (1, 2, 1.0, 1), (2, 2, 0.5, 1), (0, 1, 4.0, 0)]


@pytest.fixture
def roads(tmp_path: Path) -> Path:
    path = tmp_path / "roads.csv"
    path.write_text("from,to,km,kind\n" + "".join(",".join(map(str, edge)) + "\n" for edge in EDGES))
    return path


def test_csv_with_everything(invoke: Invoke, roads: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    (tmp_path / "y.csv").write_text("label\n0\n1\n-1\n1\n")
    columns = ("--src", "from", "--dst", "1", "--weight", "km", "--edge-type", "kind")
    np.save(tmp_path / "t.npy", np.arange(4) / 2)
    files = ("--features", tmp_path / "x.npy", "--labels", tmp_path / "y.csv", "--targets", tmp_path / "t.npy")
    outcome = invoke("data", "import", roads, tmp_path / "g", *columns, *files, "--name", "map", "--memory", "4MiB")
    assert outcome.code == 0, outcome.err
    assert outcome.out == f"4 vertices and 4 edges written to {tmp_path / 'g'}\n"
    graph = load_graph(tmp_path / "g")
    assert graph.name == "map"
    assert graph.topology.edge_data["weight"].tolist() == [2.5, 4.0, 1.0, 0.5]
    assert graph.num_edge_types == 2
    assert graph.num_classes == 2
    assert graph.num_features == 4
    assert graph.targets.tolist() == [0, 0.5, 1, 1.5]
    check_dataset(tmp_path / "g")


def test_columns_that_are_left_out_are_told(invoke: Invoke, roads: Path, tmp_path: Path) -> None:
    outcome = invoke("data", "import", roads, tmp_path / "g", "--edge-type", "kind")
    assert outcome.code == 0, outcome.err
    assert "Columns left out: km. --weight takes one as edge weights" in outcome.err
    outcome = invoke("data", "import", roads, tmp_path / "h", "--edge-type", "kind", "--weight", "km")
    assert outcome.code == 0
    assert "left out" not in outcome.err
    assert load_graph(tmp_path / "h").name == "h"


def write_ogb(folder: Path) -> Path:
    def write(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.write(text)

    write("raw/edge.csv.gz", "0,1\n1,2\n")
    write("raw/num-node-list.csv.gz", "3\n")
    write("raw/num-edge-list.csv.gz", "2\n")
    write("raw/node-feat.csv.gz", "0.5,1\n1,0\n0,0\n")
    write("raw/node-label.csv.gz", "0\n1\n1\n")
    for name, vertex in (("train", 0), ("valid", 1), ("test", 2)):
        write(f"split/time/{name}.csv.gz", f"{vertex}\n")
    return folder


def test_ogb(invoke: Invoke, tmp_path: Path) -> None:
    source = write_ogb(tmp_path / "ogbn_tiny")
    outcome = invoke("data", "import", source, tmp_path / "g", "--split-scheme", "time")
    assert outcome.code == 0, outcome.err
    # The file of a split has one row, and its mask three.
    assert {name: mask.tolist().index(True) for name, mask in load_graph(tmp_path / "g").splits.items()} == {
        "train": 0,
        "val": 1,
        "test": 2,
    }
    wrong = invoke("data", "import", source, tmp_path / "h", "--split-scheme", "space")
    assert wrong.code == 2


def test_pyg(invoke: Invoke, tmp_path: Path) -> None:
    import torch

    masks = torch.tensor([[True, False], [False, True], [False, True]])
    saved = {
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "x": torch.eye(3),
        "train_mask": masks,
        "pos": torch.eye(3),
    }
    torch.save(saved, tmp_path / "a.pt")
    outcome = invoke("data", "import", tmp_path / "a.pt", tmp_path / "g", "--split-scheme", "1", "--symmetrise")
    assert outcome.code == 0, outcome.err
    assert "Left out of a.pt: 'pos' (float32 [3, 3])." in outcome.err
    assert outcome.out == f"3 vertices and 4 edges written to {tmp_path / 'g'}\n"
    assert load_graph(tmp_path / "g").splits["train"].tolist() == [False, True, True]
    for options, said in (((), "several splits"), (("--split-scheme", "first"), "an integer from 0")):
        wrong = invoke("data", "import", tmp_path / "a.pt", tmp_path / "h", *options)
        assert wrong.code == 2
        assert said in wrong.err
        assert not (tmp_path / "h").exists()


def test_detection(tmp_path: Path) -> None:
    for name, kind in (
        ("a.csv", "csv"),
        ("a.tsv.gz", "csv"),
        ("a.pq", "parquet"),
        ("a.npz", "npz"),
        ("a.pt", "pyg"),
        ("metadata.yaml", "graphbolt"),
    ):
        (tmp_path / name).write_text("")
        assert detect_format(tmp_path / name) == kind
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"not recognised: neither metadata\.yaml, nor raw and split"):
        detect_format(tmp_path / "empty")
    (tmp_path / "a.docx").write_text("")
    with pytest.raises(DatasetError, match=r"a file that ends in '\.docx'.*--format: csv, parquet, npz"):
        detect_format(tmp_path / "a.docx")


def test_the_format_that_was_asked_for_is_the_one_that_is_read(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    pyarrow.parquet.write_table(pa.table({"u": [0, 1], "v": [1, 2]}), tmp_path / "e.dat")
    refused = invoke("data", "import", tmp_path / "e.csv", tmp_path / "g", "--format", "parquet")
    assert refused.code == 2
    assert "file cannot be read" in refused.err
    assert invoke("data", "import", tmp_path / "e.dat", tmp_path / "g", "--format", "parquet").code == 0
    shutil.copy(tmp_path / "e.dat", tmp_path / "more.parquet")
    assert invoke("data", "import", tmp_path, tmp_path / "h", "--format", "csv").out.startswith(
        "3 vertices and 2 edges"
    )


def test_arrays_of_an_archive_that_are_left_out_are_told(invoke: Invoke, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), pos=np.zeros((2, 3)))
    outcome = invoke("data", "import", tmp_path / "g.npz", tmp_path / "g")
    assert (outcome.code, "Arrays left out: pos (float64 [2, 3])." in outcome.err) == (0, True)


def test_rows_are_counted_as_they_stand_in_the_source(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "loops.csv").write_text("0,0\n0,1\n1,1\n0,1\n")
    outcome = invoke("data", "import", tmp_path / "loops.csv", tmp_path / "g", "--drop-self-loops", "--symmetrise")
    assert outcome.out == f"2 vertices and 2 edges written to {tmp_path / 'g'}\n"
    quiet = ("--quiet", "--overwrite")
    outcome = invoke("data", "import", tmp_path / "loops.csv", tmp_path / "g", *quiet)
    assert outcome.err == ""
