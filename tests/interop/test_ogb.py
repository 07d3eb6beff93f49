"""OGB's folders, in both raw layouts."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sagann.errors import DatasetError, InputError
from sagann.graph import Graph
from sagann.interop import import_ogb, read_ogb
from sagann.storage import ImportOptions, check_dataset, open_graph
from tests.storage.conftest import assert_same_graph


def write_gz(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode()))


def ogb_folder(root: Path, **changed: Any) -> Path:
    folder = root / "ogbn_small"
    files = {
        "raw/edge": [(0, 1), (1, 2), (3, 0)],
        "raw/node-feat": [(0.5, 1), (2, 3), (4, 5), (6, 7)],
        "raw/node-label": [(0,), (2,), (1,), ("nan",)],
        "raw/num-node-list": [(4,)],
        "raw/num-edge-list": [(3,)],
        "split/time/train": [(0,)],
        "split/time/valid": [(1,)],
        "split/time/test": [(2,)],
    } | changed
    for name, rows in files.items():
        if rows is not None:
            write_gz(folder / f"{name}.csv.gz", rows)
    return folder


def imported(folder: Path, **options: Any) -> Graph:
    import_ogb(folder, folder.parent / "out", options=ImportOptions(**options))
    check_dataset(folder.parent / "out")
    return open_graph(folder.parent / "out")


def assert_read_alike(folder: Path, graph: Graph) -> None:
    """Read into memory, the folder is the imported graph."""
    assert_same_graph(read_ogb(folder), graph)


def test_csv_layout(tmp_path: Path) -> None:
    graph = imported(ogb_folder(tmp_path))
    assert (graph.name, graph.num_vertices, graph.num_edges, graph.num_classes) == ("ogbn_small", 4, 3, 3)
    assert graph.topology.indices.tolist() == [3, 0, 1]
    assert graph.features.tolist() == [[0.5, 1], [2, 3], [4, 5], [6, 7]]
    assert graph.labels.tolist() == [0, 2, 1, -1]
    assert {name: mask.nonzero().flatten().tolist() for name, mask in graph.splits.items()} == {
        "train": [0],
        "val": [1],
        "test": [2],
    }
    assert_read_alike(tmp_path / "ogbn_small", graph)


def test_edge_features_and_multi_labels(tmp_path: Path) -> None:
    graph = imported(
        ogb_folder(
            tmp_path,
            **{
                "raw/edge-feat": [(0.1, 1), (0.2, 2), (0.3, 3)],
                "raw/node-label": [(0, 1), (1, 1), (0, 0), (1, 0)],
                "raw/node-feat": None,
            },
        )
    )
    assert np.allclose(graph.topology.edge_data["feat"].numpy(), [[0.3, 3], [0.1, 1], [0.2, 2]])
    assert graph.multi_label
    assert graph.num_features == 0


def test_archive_layout(tmp_path: Path) -> None:
    folder = ogb_folder(tmp_path)
    for file in (folder / "raw").iterdir():
        file.unlink()
    np.savez_compressed(
        folder / "raw" / "data.npz",
        edge_index=np.array([[0, 1, 3], [1, 2, 0]]),
        node_feat=np.arange(8, dtype=np.float16).reshape(4, 2),
        num_nodes_list=np.array([4]),
        num_edges_list=np.array([3]),
    )
    np.savez_compressed(
        folder / "raw" / "node-label.npz", node_label=np.array([[0.0], [2], [1], [np.nan]], np.float32)
    )
    graph = imported(folder)
    assert graph.topology.indices.tolist() == [3, 0, 1]
    assert graph.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert graph.labels.tolist() == [0, 2, 1, -1]
    assert_read_alike(folder, graph)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"raw/edge": None}, r"neither edge\.csv\.gz nor edge\.csv \(in .*raw\)"),
        ({"raw/edge": [(0, 1), (1, 4), (2, 0)]}, r"destination id out of range: 4, but there are 4.*row 2\)"),
        ({"raw/edge-feat": [(1,), (2,)]}, r"data 'feat' ends after 2 rows, and more edges follow .*edge-feat"),
        ({"raw/num-node-list": [(2**62,)]}, r"a stated number is out of range: expected an .* for num_vertices, found 46"),
        ({"raw/triplet-type-list": [("a", "b", "c")]}, r"a heterogeneous graph"),
        ({"split/time/valid": [(7,)]}, r"split 'val': vertex id out of range: 7.*valid\.csv\.gz, row 1\)"),
        ({"split/time/valid": [(0, 1)]}, r"int64 \[-1, 2\], expected a vector of integers .*valid\.csv\.gz"),
        ({"split/random/train": [(0,)]}, r"split scheme is not clear: None; there are random, time"),
    ],
)  # fmt: skip
def test_bad_folders_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        imported(ogb_folder(tmp_path, **changed))
    assert [entry.name for entry in tmp_path.iterdir()] == ["ogbn_small"]
    with pytest.raises(DatasetError, match=message):
        read_ogb(tmp_path / "ogbn_small")


def test_masks_for_more_vertices_than_memory_holds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not fit memory: at least 384\.0 TiB .*3 splits of 140737488355328"):
        imported(ogb_folder(tmp_path, **{"raw/num-node-list": [(2**47,)]}))


def test_a_scheme_that_is_not_there(tmp_path: Path) -> None:
    folder = ogb_folder(tmp_path)
    with pytest.raises(DatasetError, match=r"no such split scheme: 'random'; there are time .*\(--split-scheme\)"):
        import_ogb(folder, tmp_path / "out", split="random")
    shutil.rmtree(folder / "split" / "time")
    for scheme in ("time", None):
        with pytest.raises(DatasetError, match=r"no such split scheme: no folder of a scheme .*SCHEME/train\.csv"):
            import_ogb(folder, tmp_path / "out", split=scheme)
    (folder / "split").rmdir()
    with pytest.raises(DatasetError, match=r"no such split scheme: no folder"):
        import_ogb(folder, tmp_path / "out", split="time")
    assert imported(folder).splits == {}


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"not a dataset folder of OGB: no folder 'raw'"):
        import_ogb(tmp_path, tmp_path / "out")
