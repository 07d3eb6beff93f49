"""Files that PyG has saved: each form gives the graph of from_pyg; what a graph does not take is said; nothing is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sagann.errors import DatasetError, InputError, shown
from sagann.graph import Graph
from sagann.interop import from_pyg, import_pyg, read_pyg
from sagann.storage import check_dataset, load_graph
from tests.storage.conftest import assert_same_arrays

FIELDS: dict[str, Any] = {
    "x": torch.arange(8.0).reshape(4, 2),
    "edge_index": torch.tensor([[3, 0, 1, 2], [1, 2, 0, 0]]),
    "edge_weight": torch.tensor([1.0, 2, 3, 4]),
    "edge_type": torch.tensor([0, 1, 0, 1]),
    "edge_attr": torch.ones(4, 2),
    "y": torch.tensor([0, 1, 2, 0]),
    "train_mask": torch.tensor([True, False, False, True]),
    "test_mask": torch.tensor([False, True, False, False]),
}


def data_object(**fields: Any) -> Any:
    data = pytest.importorskip("torch_geometric.data")
    return data.Data(**{name: each for name, each in (FIELDS | fields).items() if each is not None})


def read(path: Path, saved: Any, **options: Any) -> Graph:
    torch.save(saved, path)
    return read_pyg(path, **options)


@pytest.mark.parametrize("form", ["object", "dict", "tuple", "dataset", "old"])
def test_each_form_gives_the_graph_of_from_pyg(form: str, tmp_path: Path) -> None:
    data, path = data_object(), tmp_path / "cora.pt"
    from torch_geometric.data import InMemoryDataset

    if form == "dataset":
        InMemoryDataset.save([data], str(path))
    elif form == "old":
        # PyG 1 kept the attributes in the object itself.
        old = data_object()
        old.__dict__.clear()
        old.__dict__.update(FIELDS, pos=None, __num_nodes__=4)
        torch.save((old, None), path)
    else:
        torch.save({"object": data, "dict": data.to_dict(), "tuple": (data, None)}[form], path)
    graph = read_pyg(path)
    assert_same_arrays(graph, from_pyg(data))
    assert graph.name == "cora"


def test_slices_of_one_graph_and_a_saved_number_of_vertices(tmp_path: Path) -> None:
    data = data_object(x=None, y=None, train_mask=None, test_mask=None, num_nodes=9)
    slices = {"edge_index": torch.tensor([0, 4]), "num_nodes": torch.tensor([0, 1])}
    assert read(tmp_path / "a.pt", (data, slices)).num_vertices == 9
    assert read(tmp_path / "a.pt", {"edge_index": FIELDS["edge_index"]}).num_vertices == 4


@pytest.mark.parametrize("fields", [{"y": torch.arange(6)}, {"val_mask": torch.arange(6) > 3}])
def test_labels_or_masks_count_the_vertices_without_features(fields: dict[str, Any], tmp_path: Path) -> None:
    path, edge_index = tmp_path / "a.pt", FIELDS["edge_index"]
    graph = read(path, {"edge_index": edge_index, **fields})
    assert graph.num_vertices == 6
    import_pyg(path, tmp_path / "a")
    assert_same_arrays(load_graph(tmp_path / "a"), graph)
    with pytest.raises(DatasetError, match=r"no label for each vertex.*y \[1\], but there are 4 vertices"):
        read(path, {"edge_index": edge_index, "y": torch.tensor([1])})


def test_pyg_need_not_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(data_object(), tmp_path / "a.pt")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_geometric"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert str(read_pyg(tmp_path / "a.pt")) == "Graph(num_vertices=4, num_edges=4, num_features=2, num_classes=3)"


def test_names_that_people_give_are_taken(tmp_path: Path) -> None:
    masks = {"train_mask": None, "test_mask": None, "edge_weight": None}
    ids = {"train_idx": torch.tensor([3, 0]), "valid_idx": torch.tensor([2], dtype=torch.int32)}
    data = data_object(**masks, **ids, weight=torch.tensor([1.0, 2, 3, 4]))
    graph = from_pyg(data)
    assert graph.topology.edge_data["weight"].tolist() == [3, 4, 1, 2]
    assert {name: mask.tolist() for name, mask in graph.splits.items()} == {
        "train": [True, False, False, True],
        "val": [False, False, True, False],
    }
    assert_same_arrays(read(tmp_path / "a.pt", data), graph)
    with pytest.warns(UserWarning, match=r"Left out of data: 'weight' \(float32 \[4\]\), 'train_idx'"):
        both = from_pyg(data_object(weight=torch.ones(4), train_idx=torch.tensor([1])))
    assert_same_arrays(both, from_pyg(data_object()))
    for given in (torch.tensor([4]), torch.tensor([-1])):
        for fails in (from_pyg, lambda data: read(tmp_path / "a.pt", data)):
            with pytest.raises(InputError, match=r"id out of range: (4|-1), but"):
                fails(data_object(**masks, train_idx=given))


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    extra = {
        "pos": torch.ones(4, 3),
        "node_type": torch.zeros(4),
        "title": "a\n",
        "face": None,
        "edge_label": torch.ones(4),
    }
    extra |= {"edge_label_index": torch.zeros(2, 4)}
    data = data_object(**extra)
    with pytest.warns(UserWarning, match=r"Left out of a\.pt: ") as caught:
        graph = read(tmp_path / "a.pt", data)
    (warning,) = caught
    said = str(warning.message)
    for name in (
        "'pos' (float32 [4, 3])",
        "'node_type' (float32 [4])",
        "'title' (a str)",
        "'edge_label' (float32 [4])",
    ):
        assert name in said
    assert "face" not in said
    assert "\n" not in said
    with pytest.warns(UserWarning, match=r"Left out of data: ") as caught:
        assert_same_arrays(graph, from_pyg(data))
    assert str(caught[0].message) == said.replace("a.pt", "data")
    lines: list[str] = []
    import_pyg(tmp_path / "a.pt", tmp_path / "a", say=lines.append)
    assert lines == [said]


def test_a_column_of_masks_is_chosen(tmp_path: Path) -> None:
    masks = torch.tensor([[True, False], [False, True], [False, False], [True, True]])
    data = data_object(train_mask=masks, test_mask=~masks)
    graph = read(tmp_path / "a.pt", data, split=1)
    assert graph.splits["train"].tolist() == masks[:, 1].tolist()
    assert graph.splits["test"].tolist() == (~masks[:, 1]).tolist()
    for split in (None, 2, -1):
        with pytest.raises(DatasetError, match=r"several splits: 2 columns, and .*train_mask.*from 0 to 1"):
            read_pyg(tmp_path / "a.pt", split=split)
    with pytest.raises(DatasetError, match=r"no split to choose: column 1 .*Leave split= \(--split-scheme\) out"):
        read(tmp_path / "b.pt", data_object(), split=1)


def test_a_sparse_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"sparse_coo.*to_dense\(\)"):
        read(tmp_path / "a.pt", data_object(x=torch.eye(4).to_sparse()))


def molecule(size: int, *, seed: int = 0, **fields: Any) -> Any:
    """A graph of a dataset of many, with a row of two numbers for an answer unless ``fields`` say otherwise."""
    data = pytest.importorskip("torch_geometric.data")
    generator = torch.Generator().manual_seed(size + seed)
    num_edges = 2 * size if size else 0
    found = {
        "x": torch.rand(size, 3, generator=generator),
        "edge_index": torch.randint(max(size, 1), (2, num_edges), generator=generator),
        "edge_attr": torch.rand(num_edges, 2, generator=generator),
        "y": torch.rand(1, 2, generator=generator),
        "smiles": "C" * size,
    }
    return data.Data(**{name: each for name, each in (found | fields).items() if each is not None})


SIZES = (3, 1, 5, 2)
AS_BATCH = {
    "targets": {},
    "classes": {"y": torch.tensor([1])},
    "several classes": {"y": torch.tensor([[0, 1, 1]])},
    "a vector for each": {"y": torch.tensor([0.5, 1.5])},
}


@pytest.mark.parametrize("name", AS_BATCH)
def test_many_graphs_are_those_of_a_batch(name: str, tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    graphs, task = [molecule(size, **AS_BATCH[name]) for size in SIZES], "auto"
    if name in ("targets", "a vector for each"):
        task = "regression"
    data.InMemoryDataset.save(graphs, str(tmp_path / "many.pt"))
    with pytest.warns(UserWarning, match="Left out of many.pt: 'smiles'"):
        graph = read_pyg(tmp_path / "many.pt", task=task)
    batch = data.Batch.from_data_list(graphs)
    batch.y = batch.y.reshape(len(SIZES), -1).squeeze(1)
    with pytest.warns(UserWarning, match="Left out of data: 'smiles'"):
        expected = from_pyg(batch, task=task)
    assert_same_arrays(graph, expected)
    with pytest.warns(UserWarning, match="smiles"):
        import_pyg(tmp_path / "many.pt", tmp_path / "many", task=task)
    check_dataset(tmp_path / "many")
    assert_same_arrays(load_graph(tmp_path / "many"), graph)


def test_a_graph_without_edges_or_vertices_is_one_of_many(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    graphs = [molecule(size, smiles=None) for size in (2, 0, 1, 3)]
    graphs[2].edge_index, graphs[2].edge_attr = torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 2)
    data.InMemoryDataset.save(graphs, str(tmp_path / "a.pt"))
    graph = read_pyg(tmp_path / "a.pt", task="regression")
    assert graph.graph_ptr.tolist() == [0, 2, 2, 3, 6]
    assert graph.num_edges == 4 + 6
    graph.topology.validate()


MANY: dict[str, Any] = {
    "x": torch.ones(3, 2),
    "edge_index": torch.tensor([[0, 0], [1, 0]]),
    "y": torch.tensor([0, 1]),
}
SLICES = {"x": [0, 2, 3], "edge_index": [0, 1, 2], "y": [0, 1, 2]}
# Each differs from the one before by about 2^62 in 64 bits.
AROUND = {name: [0, 2**62, -(2**63), -(2**62), bounds[-1]] for name, bounds in SLICES.items()}


@pytest.mark.parametrize(
    ("fields", "slices", "message"),
    [
        ({}, {"x": [0, 1, 2, 3]}, r"do not count the same graphs: shapes \[\(3,\), \(4,\)\]"),
        ({}, {"x": [0, 2, 4]}, "the slices of 'x' are not those of its rows: from 0 to 4, expected ascending offsets of 3 rows"),
        ({}, AROUND, "the slices of 'x' are not those of its rows: from 0 to 3, expected ascending"),
        ({"edge_index": torch.tensor([[0, 1], [1, 0]])}, {}, r"an edge leaves its graph: 1 -> 0 in graph 1, which has 1 vertices .*column 1"),
        ({"x": None}, {}, "not clear which vertices a graph has: neither x, z, pos nor num_nodes tells"),
        ({"pos": torch.ones(4, 2), "x": torch.ones(3, 2), "_num_nodes": [3, 1]}, {}, "x has other slices than the vertices"),
        ({"y": torch.tensor([0, 1, 1, 1])}, {"y": [0, 1, 4]}, r"no label for each vertex, nor for each graph: y \[4\], but there are 2 graphs"),
        ({}, {"y": [0, 0, 2]}, r"y \[2\], but there are 2 graphs, each of which has 0 to 2 rows of y"),
    ],
)  # fmt: skip
def test_slices_that_contradict_the_attributes_are_refused(
    fields: dict[str, Any], slices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved = {name: each for name, each in (MANY | fields).items() if each is not None}
    bounds = {name: torch.tensor(each) for name, each in (SLICES | slices).items()}
    with pytest.raises((DatasetError, InputError), match=message):
        read(tmp_path / "a.pt", (saved, bounds, None))


def test_batches_and_lists_of_graphs_are_refused(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    with pytest.raises(DatasetError, match=r"InMemoryDataset\.save\(batch\.to_data_list\(\), FILE\)"):
        read(tmp_path / "b.pt", data.Batch.from_data_list([data_object(), data_object()]))
    with pytest.raises(DatasetError, match=r"the file has no graph: a list, expected a Data object"):
        read(tmp_path / "c.pt", [data_object(), data_object()])


def test_other_kinds_of_objects_are_refused_with_the_remedy(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    typed = data.HeteroData()
    typed["a"].x = torch.ones(2, 2)
    with pytest.raises(DatasetError, match=r"'torch_geometric\.data\.hetero_data\..*to_homogeneous\(\)"):
        read(tmp_path / "a.pt", typed)
    from torch_geometric.datasets import FakeDataset

    with pytest.raises(
        DatasetError, match=r"'torch_geometric\.datasets\.fake\.FakeDataset'.*dataset object; save its graph"
    ):
        read(tmp_path / "b.pt", FakeDataset(num_graphs=1))


class Call:
    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


@pytest.mark.parametrize(
    "hostile",
    [
        lambda: Call(os.system, "touch owned"),
        lambda: data_object(info=[{"a": (Call(os.system, "touch owned"),)}]),
        lambda: Call(torch.load, "inner.pt", None, None),
        # On PyG's own list of safe classes; its constructor opens a file.
        lambda: Call(
            pytest.importorskip("torch_geometric.loader").ClusterData, data_object(), 2, False, os.getcwd()
        ),
        lambda: (data_object(), {"x": Call(eval, "open('owned', 'w')")}),
        lambda: ({}, None, os._Environ),
        lambda: Call(torch._utils._rebuild_tensor_v3, Call(os.system, "touch owned")),
    ],
)
def test_nothing_in_a_file_is_run(
    hostile: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(hostile(), "a.pt")
    torch.save(Call(os.system, "touch owned"), "inner.pt")
    before = sorted(os.listdir())
    with pytest.raises(
        DatasetError, match=r"names a class or function that is not read: '.*To load it could run any code"
    ):
        read_pyg("a.pt")
    assert sorted(os.listdir()) == before


def test_older_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for saved, message in (
        ({"_use_new_zipfile_serialization": False}, r"no zip archive.*save it again"),
        ({"pickle_protocol": 5}, r"file of PyTorch cannot be read: .*149"),
    ):
        torch.save({"edge_index": torch.tensor([[0, 1], [1, 2]])}, path, **saved)
        with pytest.raises(DatasetError, match=message):
            read_pyg(path)


@pytest.mark.parametrize("count", [-1, 2**48, True, [4, 4]], ids=shown)
def test_a_number_of_vertices_that_is_none_is_refused(count: Any, tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"the number of vertices is no count: .*, expected an integer from 0 .*num_nodes"
    ):
        read(tmp_path / "a.pt", {"edge_index": torch.tensor([[0], [1]]), "num_nodes": count})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint32])
def test_features_of_any_dtype_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.tensor([[0, 3], [2, 2], [5, 1]]).to(dtype)
    found = read(tmp_path / "a.pt", {"edge_index": torch.tensor([[0, 1], [1, 2]]), "x": x}).features
    assert torch.equal(found.double(), x.double())


def test_unsigned_edge_data_keep_their_digits(tmp_path: Path) -> None:
    fields = {"edge_index": torch.tensor([[0, 1], [1, 2]])}
    for dtype, number in ((torch.uint32, 2**32 - 1), (torch.uint64, 2**40 + 1)):
        graph = read(tmp_path / "a.pt", fields | {"edge_id": torch.tensor([number, 3], dtype=dtype)})
        assert graph.topology.edge_data["id"].tolist() == [number, 3]
    with pytest.raises(DatasetError, match=r"edge data 'id' is out of range: 18446744073709551615, beyond int64"):
        read(tmp_path / "a.pt", fields | {"edge_id": torch.tensor([2**64 - 1, 3], dtype=torch.uint64)})
