"""Edge lists in CSV and Parquet: what they hold is imported, and what is wrong is named by file and row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sagann.errors import DatasetError
from sagann.graph import Graph
from sagann.storage import EdgeListFormat, ImportOptions, check_dataset, import_edge_list, open_graph
from sagann.storage.edge_list import describe_columns


def imported(source: Any, folder: Path, form: EdgeListFormat | None = None, **options: Any) -> Graph:
    files = {name: options.pop(name) for name in ("features", "labels", "targets") if name in options}
    import_edge_list(source, folder / "out", form=form, options=ImportOptions(overwrite=True, **options), **files)
    check_dataset(folder / "out")
    return open_graph(folder / "out")


def csv_file(folder: Path, text: str | bytes, name: str = "edges.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def pairs(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.topology.indices.tolist(), graph.topology.edge_dst().tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2,1\n0,1\n1,2\n", {}),
        ("from,to\n2,1\n0,1\n1,2\n", {}),
        ("# SNAP writes\n# comments\n2\t1\n0\t1\n1\t2\n", {"separator": "\t"}),
        ("km,to,from\n9,1,2\n9,1,0\n9,2,1\n", {"src": "from", "dst": "to"}),
        ("9,1,2\n9,1,0\n9,2,1\n", {"src": 2, "dst": 1}),
        ("7,8\n2,1\n0,1\n1,2\n", {"header": True, "src": "7", "dst": "8"}),
    ],
)
def test_forms_of_csv(tmp_path: Path, text: str, form: dict[str, Any]) -> None:
    graph = imported(csv_file(tmp_path, text), tmp_path, EdgeListFormat(**form))
    assert pairs(graph) == [(0, 1), (2, 1), (1, 2)]
    assert graph.name == "out"


@pytest.mark.parametrize(
    "text",
    [
        "time,src,dst\n5,2,1\n6,0,1\n7,1,2\n",
        "ts,source_id,target_id\n5,2,1\n6,0,1\n7,1,2\n",
        "dst,src\n1,2\n1,0\n2,1\n",
        "Weight,To,From\n5,1,2\n6,1,0\n7,2,1\n",
        ",V,U\n0,1,2\n1,1,0\n2,2,1\n",
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_say_which_columns_are_the_ends(tmp_path: Path, text: str, kind: str) -> None:
    path = csv_file(tmp_path, text)
    if kind == "parquet":
        path = tmp_path / "edges.parquet"
        pq.write_table(pyarrow.csv.read_csv(tmp_path / "edges.csv"), path)
    assert pairs(imported(path, tmp_path)) == [(0, 1), (2, 1), (1, 2)]
    named = text.partition("\n")[0].split(",")
    form = EdgeListFormat(src=named[-2], dst=named[-1])
    assert imported(path, tmp_path, form).topology.indices.numel() == 3


def test_a_file_that_was_cut_has_the_columns_of_that_with_names(tmp_path: Path) -> None:
    files = [csv_file(tmp_path, "7,3,0\n", "b.csv"), csv_file(tmp_path, "time,src,dst\n5,0,1\n", "a.csv")]
    assert pairs(imported(files, tmp_path)) == [(3, 0), (0, 1)]
    assert "from column 1 to column 2. Columns left out: column 0." in describe_columns(files, EdgeListFormat())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("src,source,dst", r"column 'src' and column 'source' both name the column of 'src'; there are"),
        ("time,src,x", r"no column 'dst' \(dst, destination, target, to, v, tail\) beside"),
        ("id,a,b", r"column 'id' is not taken for an end of edges"),
    ],
)
def test_names_that_contradict_are_refused(tmp_path: Path, names: str, message: str) -> None:
    path = csv_file(tmp_path, f"{names}\n5,0,1\n6,1,2\n")
    with pytest.raises(DatasetError, match=rf"not clear what the columns are: {message}.*--src and --dst"):
        imported(path, tmp_path)
    assert pairs(imported(path, tmp_path, EdgeListFormat(src=1, dst=2))) == [(0, 1), (1, 2)]


@pytest.mark.parametrize("form", ["csv", "parquet", "sorted"])
def test_ids_of_rows_say_whose_they_are(tmp_path: Path, form: str) -> None:
    edges = csv_file(tmp_path, "src,dst\n0,1\n1,2\n2,3\n")
    order = np.arange(4) if form == "sorted" else np.array([0, 3, 1, 2])
    columns = {
        "features": {"a": order * 1.0, "ID": order, "b": order * 10},
        "labels": {"node_id": order, "y": order % 2},
        "targets": {"price": order + 0.5, "vertex": order},
    }
    for what, table in columns.items():
        if form == "parquet":
            pq.write_table(pa.table(table), tmp_path / f"{what}.parquet")
        else:
            np.savetxt(
                tmp_path / f"{what}.csv",
                np.stack([*table.values()], 1),
                fmt="%g",
                delimiter=",",
                header=",".join(table),
                comments="",
            )
    files = {what: tmp_path / f"{what}.{'parquet' if form == 'parquet' else 'csv'}" for what in columns}
    graph = imported(edges, tmp_path, **files)
    assert graph.features.tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert graph.labels.tolist() == [0, 1, 0, 1]
    assert graph.targets.tolist() == [0.5, 1.5, 2.5, 3.5]
    said = describe_columns(edges, EdgeListFormat(), files.values())
    assert f"Rows of {files['features'].name} are those of the vertices in column 'ID'." in said


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,5\n2,6\n2,7\n1,8\n", r"2 stands twice; there are 4 rows \(in .*y\.csv, row 4\)"),
        ("0,5\n1,6\n0,7\n", r"0 stands twice;.*row 4\)"),
        ("0,5\n1,6\n3,7\n", r"3 stands where 2 is missing; there are 3 rows .*row 4\)"),
        ("0,5\n-1,6\n1,7\n", r"-1 is negative;.*row 3\)"),
    ],
)
def test_ids_that_are_not_those_of_the_vertices_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    targets = csv_file(tmp_path, f"id,y\n{rows}", "y.csv")
    with pytest.raises(DatasetError, match=message):
        imported(csv_file(tmp_path, "0,1\n"), tmp_path, targets=targets)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('y\n1.0\n""\n0.0\n', [1, -1, 0]),
        ("id,y\n2,0.0\n1,\n0, 1.0\n", [1, -1, 0]),
        ("id,y\n0,2\n1,nan\n2,-1\n", [2, -1, -1]),
        ("a,b\n1.0,0.0\n0,1\n1,1\n", [[1, 0], [0, 1], [1, 1]]),
        ("parquet", [1, -1, 0]),
    ],
)
def test_labels_as_pandas_writes_them_beside_missing_ones(tmp_path: Path, text: str, labels: list[Any]) -> None:
    file = csv_file(tmp_path, text, "y.csv")
    if text == "parquet":
        file = tmp_path / "y.parquet"
        pq.write_table(pa.table({"y": [1, None, 0]}), file)
    graph = imported(csv_file(tmp_path, "0,1\n1,2\n"), tmp_path, labels=file)
    assert graph.labels.tolist() == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y\n1.0\nx\n", r"column 'y': .* invalid value 'x' .*row 3\).*factorize"),
        ("a,b\n1,0\n,1\n", r"label out of range: \[nan, 1\.0\], .*row 3\)"),
        ("y\n1\n\n0\n", r"the line is empty.*row 3\)"),
    ],
)
def test_labels_that_are_none_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        imported(csv_file(tmp_path, "0,1\n1,2\n"), tmp_path, labels=csv_file(tmp_path, text, "y.csv"))


def test_gzip_and_several_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    first = csv_file(folder, gzip.compress(b"0,1\n"), "a.csv.gz")
    second = csv_file(folder, "1,2\n", "b.csv")
    csv_file(folder, "no edges here", "README.md")
    assert pairs(imported(first, tmp_path)) == [(0, 1)]
    assert pairs(imported([second, first], tmp_path)) == [(0, 1), (1, 2)]
    assert pairs(imported(folder, tmp_path)) == [(0, 1), (1, 2)]
    csv_file(folder, "2\t3\n", "c.tsv")
    assert pairs(imported(folder, tmp_path)) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("f0,f1,f2\n0,1,0\n", r"f0, f1, in a\.csv src, dst"),
        ("0,1,1\n1,1,0\n", r"3 columns, in c\.csv 2 columns"),
    ],
)
def test_files_of_a_folder_have_the_same_columns(tmp_path: Path, other: str, message: str) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    csv_file(folder, "src,dst\n0,1\n", "a.csv")
    csv_file(folder, "kind,src,dst\n5,1,2\n", "b.csv")
    csv_file(folder, "2,3\n", "c.csv")
    by_name = EdgeListFormat(src="src", dst="dst")
    (folder / "c.csv").rename(tmp_path / "c.csv")
    assert pairs(imported(folder, tmp_path, by_name)) == [(0, 1), (1, 2)]
    (folder / "b.csv").unlink()
    (tmp_path / "c.csv").rename(folder / "c.csv")
    # A shard without names, as where a large file was cut.
    csv_file(folder, "dst,src\n3,1\n", "d.csv")
    assert pairs(imported(folder, tmp_path)) == [(0, 1), (1, 3), (2, 3)]
    csv_file(folder, other, "x.csv")
    with pytest.raises(DatasetError, match=rf"edge files differ in their columns: {message} \(in .*x\.csv\)"):
        imported(folder, tmp_path)


def test_files_of_vertices_are_not_read_as_edges(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    csv_file(folder, "0,1\n1,0\n", "a.csv")
    beside = csv_file(folder, "0,1\n1,0\n", "x.csv")
    (tmp_path / "link.csv").symlink_to(beside)
    with pytest.raises(DatasetError, match=r"a file of vertex labels stands among those of edges.*x\.csv"):
        imported(folder, tmp_path, labels=tmp_path / "link.csv")


@pytest.mark.parametrize("form", [{"src": "dst"}, {"src": 0, "dst": 0}, {"dst": "src"}])
def test_source_and_destination_are_two_columns(tmp_path: Path, form: dict[str, Any]) -> None:
    with pytest.raises(
        DatasetError, match=r"the same column: '(src|dst)'; there are 'src', 'dst' .*--src and --dst"
    ):
        imported(csv_file(tmp_path, "src,dst\n0,1\n"), tmp_path, EdgeListFormat(**form))


def test_weights_types_and_parquet(tmp_path: Path) -> None:
    table = {"kind": [1, 0, 1], "u": [2, 0, 1], "v": [1, 1, 2], "w": [0.5, 1.5, 2.5]}
    pq.write_table(pa.table(table), tmp_path / "e.parquet", row_group_size=2)
    graph = imported(
        tmp_path / "e.parquet", tmp_path, EdgeListFormat(src="u", dst="v", weight="w", edge_type="kind")
    )
    assert pairs(graph) == [(0, 1), (2, 1), (1, 2)]
    assert graph.topology.edge_data["weight"].tolist() == [1.5, 0.5, 2.5]
    assert graph.topology.edge_data["type"].tolist() == [0, 1, 1]
    assert graph.num_edge_types == 2


def test_targets_beside_the_edges(tmp_path: Path) -> None:
    edges = csv_file(tmp_path, "0,1\n1,2\n")
    np.save(tmp_path / "t.npy", np.array([[1.5], [2], [3]]))
    graph = imported(edges, tmp_path, targets=tmp_path / "t.npy", labels=csv_file(tmp_path, "0\n1\n1\n", "y.csv"))
    assert (graph.targets.tolist(), graph.labels.tolist()) == ([1.5, 2, 3], [0, 1, 1])
    with pytest.raises(DatasetError, match=r"target is not finite: nan .*t\.csv, row 3\)"):
        imported(edges, tmp_path, targets=csv_file(tmp_path, "price\n1\nnan\n2\n", "t.csv"))


def test_separators_are_those_of_every_file(tmp_path: Path) -> None:
    edges = csv_file(tmp_path, "0,1\n1,2\n")
    features = csv_file(tmp_path, "a\tb\n0.5\t1\n2\t3\n4\t5\n", "x.tsv")
    labels = csv_file(tmp_path, "0\t1\n1\t1\n0\t0\n", "y.tsv")
    graph = imported(edges, tmp_path, features=features, labels=labels)
    assert (graph.num_features, graph.num_classes) == (2, 2)
    edges = csv_file(tmp_path, "0;1\n1;2\n")
    features = csv_file(tmp_path, "a;b\n0.5;1\n2;3\n4;5\n", "x.csv")
    assert imported(edges, tmp_path, EdgeListFormat(separator=";"), features=features).num_features == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"file is empty: there is no row in it \(in .*edges\.csv\)"),
        ("0,1\nx,2\n", r"column 0: .*int64: invalid value 'x' \(in .*edges\.csv, row 2\)\. .*pandas\.factorize"),
        ("a,b\n0,1\n0,1.5\n", r"column 'b': .* invalid value '1\.5' .*row 3\)"),
        ("0,1\n,2\n", r"column 0 has no value .*row 2\)"),
        ("0,1\n1,2,3\n", r"Expected 2 columns, got 3: 1,2,3 .*row 2\)"),
        ("0,1\n-1,2\n", r"source id out of range: -1, but ids start at 0 .*row 2\)"),
        ("0\n1\n", r"column not found: no column 1; there are column 0 "),
        ("a,a\n0,1\n", r"columns share a name: 'a'"),
        ("0,1\n" * 300_000 + "3,y\n", r"column 1: .* invalid value 'y' .*row 300001\)"),
        ("from,to\n", r"edge list has no edges: no row after the names 'from, to' .*edges\.csv"),
        ("0,1\n".encode("utf-16"), r"edges\.csv"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        imported(csv_file(tmp_path, text), tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.csv"]


def test_stated_limits_and_weights(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "0,1,0.5\n1,5,nan\n")
    with pytest.raises(DatasetError, match=r"destination id out of range: 5, but there are 3 vertices.*row 2\)"):
        imported(path, tmp_path, num_vertices=3)
    with pytest.raises(DatasetError, match=r"edge data 'weight' is not finite: nan .*row 2\)"):
        imported(path, tmp_path, EdgeListFormat(weight=2))
    large = csv_file(tmp_path, "0,1,0.5\n1,0,-1e39\n", "large.csv")
    with pytest.raises(DatasetError, match=r"edge data 'weight' is not finite: -inf .*large\.csv, row 2\)"):
        imported(large, tmp_path, EdgeListFormat(weight=2))
    with pytest.raises(DatasetError, match=r"column 2: .* invalid value '0\.5' .*row 1\)"):
        imported(path, tmp_path, EdgeListFormat(edge_type=2))
    with pytest.raises(DatasetError, match=r"no column 'km'; there are column 0, column 1, column 2"):
        imported(path, tmp_path, EdgeListFormat(weight="km"))
    for kind in (-4, 2**32):
        typed = csv_file(tmp_path, f"0,1,0\n1,2,{kind}\n", "typed.csv")
        with pytest.raises(DatasetError, match=rf"edge type out of range: {kind}, but types go from 0 .*row 2\)"):
            imported(typed, tmp_path, EdgeListFormat(edge_type=2))


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"file cannot be read: .*not.parquet"):
        imported(csv_file(tmp_path, b"PAR1", "not.parquet"), tmp_path)
    with pytest.raises(DatasetError, match=r"file not found: .*absent\.csv\. Check"):
        imported(tmp_path / "absent.csv", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"no edge files found"):
        imported(tmp_path / "empty", tmp_path)


def test_bad_parquet_columns_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": ["a", "b"], "v": [1, 2]}), tmp_path / "names.parquet")
    with pytest.raises(DatasetError, match=r"column 'u' is string, expected integers \(in .*names\.parquet\)"):
        imported(tmp_path / "names.parquet", tmp_path)
    pq.write_table(pa.table({"u": [0, None, 2], "v": [1, 2, 0]}), tmp_path / "null.parquet")
    with pytest.raises(DatasetError, match=r"column 'u' has no value \(in .*null\.parquet, row 1\)"):
        imported(tmp_path / "null.parquet", tmp_path)
    big = pa.table({"u": pa.array([0, 2**63], pa.uint64()), "v": [1, 2]})
    pq.write_table(big, tmp_path / "big.parquet")
    with pytest.raises(DatasetError, match=r"source id out of range: -9223372036854775808.*row 1\)"):
        imported(tmp_path / "big.parquet", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("features", np.zeros(3), r"float64 \[3\], expected numbers \[num_vertices, num_features\]"),
        (
            "features",
            np.zeros((2, 4)),
            r"out of range: 2, but there are 2 vertices, .*: the rows of .*x\.npy .*row 2\)\. Give each .* row in .*x\.npy",
        ),
        ("labels", np.array([0, 7, 1]), r"label out of range: 7, but there are 3 classes.*row 1\)"),
        ("labels", np.array([{}], dtype=object), r"file cannot be read: .*pickled objects are never loaded"),
    ],
)
def test_bad_vertex_arrays_are_named(tmp_path: Path, file: str, content: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", content, allow_pickle=True)
    with pytest.raises(DatasetError, match=message):
        imported(
            csv_file(tmp_path, "0,1\n1,2\n"),
            tmp_path,
            num_classes=3 if "3 classes" in message else None,
            **{file: tmp_path / "x.npy"},
        )


@pytest.mark.parametrize("first", ["O,1", "-,5", ",5"])
def test_a_damaged_first_row_is_not_taken_for_names(tmp_path: Path, first: str) -> None:
    (tmp_path / "e.csv").write_text(f"{first}\n1,2\n")
    with pytest.raises(DatasetError, match="the first row is neither names nor numbers"):
        import_edge_list(tmp_path / "e.csv", tmp_path / "g")
