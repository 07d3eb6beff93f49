"""Datasets by name: folders of PyG, made by PyG itself, of OGB and of sagann; what is missing is explained."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sagann.errors import DatasetError, InputError
from sagann.graph import Graph, Topology
from sagann.interop import from_pyg, load_dataset
from sagann.storage import load_graph, save_graph
from tests.interop.test_ogb import ogb_folder
from tests.interop.test_pyg_file import FIELDS, molecule
from tests.storage.conftest import assert_same_arrays

NUM_TRAIN, NUM_VAL = 140, 500


def citations(num_vertices: int = 700) -> Graph:
    """An undirected graph without self-loops, split as the Planetoid datasets are."""
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(num_vertices, (2, 1500), generator=generator)
    pairs = torch.stack([src, dst])[:, src != dst]
    pairs = torch.cat([pairs, pairs.flip(0)], dim=1).unique(dim=1)
    number = torch.arange(num_vertices)
    return Graph(
        topology=Topology.from_coo(src=pairs[0], dst=pairs[1], num_src=num_vertices),
        features=torch.randint(2, (num_vertices, 12), generator=generator).float(),
        # Every class is among the labels.
        labels=torch.cat([torch.arange(4), torch.randint(4, (num_vertices - 4,), generator=generator)]),
        num_classes=4,
        splits={
            "train": number < NUM_TRAIN,
            "val": (number >= NUM_TRAIN) & (number < NUM_TRAIN + NUM_VAL),
            "test": number >= NUM_TRAIN + NUM_VAL,
        },
        name="Cora",
    )


def planetoid(root: Path, graph: Graph, name: str = "Cora") -> None:
    """Have PyG process a dataset: first the raw files that its authors distribute are written."""
    datasets = pytest.importorskip("torch_geometric.datasets")
    write_raw(root / name / "raw", graph, name)
    datasets.Planetoid(str(root), name)


def write_raw(raw: Path, graph: Graph, name: str = "Cora", protocol: int = 2) -> None:
    """Write the raw files of a dataset, as its authors distribute them."""
    sparse = pytest.importorskip("scipy.sparse")
    raw.mkdir(parents=True)
    x = graph.features.to_dense() if graph.features.layout != torch.strided else graph.features
    y = F.one_hot(graph.labels.long(), graph.num_classes).numpy()
    (test,) = graph.splits["test"].nonzero(as_tuple=True)
    first = int(test[0])
    assert test.tolist() == list(range(first, graph.num_vertices))
    num_train = int(graph.splits["train"].sum())
    neighbours: dict[int, list[int]] = {vertex: [] for vertex in range(graph.num_vertices)}
    for source, target in zip(graph.topology.indices.tolist(), graph.topology.edge_dst().tolist(), strict=True):
        neighbours[source].append(target)
    files: dict[str, Any] = {
        "x": sparse.csr_matrix(x[:num_train].numpy()),
        "allx": sparse.csr_matrix(x[:first].numpy()),
        "tx": sparse.csr_matrix(x[first:].numpy()),
        "y": y[:num_train],
        "ally": y[:first],
        "ty": y[first:],
        "graph": neighbours,
    }
    for key, value in files.items():
        (raw / f"ind.{name.lower()}.{key}").write_bytes(pickle.dumps(value, protocol=protocol))
    (raw / f"ind.{name.lower()}.test.index").write_text("".join(f"{vertex}\n" for vertex in test.tolist()))


def saved_by_pyg(folder: Path, file: str = "data.pt", **fields: Any) -> Any:
    """A folder in which PyG keeps a processed dataset of one graph."""
    data = pytest.importorskip("torch_geometric.data")
    graph = data.Data(**(FIELDS | fields))
    (folder / "processed").mkdir(parents=True, exist_ok=True)
    (folder / "raw").mkdir(exist_ok=True)
    data.InMemoryDataset.save([graph], str(folder / "processed" / file))
    for name in ("pre_transform.pt", "pre_filter.pt"):
        torch.save("None", folder / "processed" / name)
    return graph


@pytest.mark.parametrize("root", ["data", "dataset", "datasets"])
def test_the_usual_folders_are_looked_into(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = ogb_folder(tmp_path / root)
    # Folders of these names are no datasets.
    for name in ("raw", "processed"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for name in ("ogbn-small", "ogbn_small"):
        graph = load_dataset(name)
        assert (graph.name, graph.num_edges, graph.topology.indices.tolist()) == (folder.name, 3, [3, 0, 1])
        assert graph.splits["val"].tolist() == [False, True, False, False]


def test_schemes_and_columns_are_chosen(tmp_path: Path) -> None:
    ids = {"train": 2, "valid": 1, "test": 0}
    ogb_folder(tmp_path, **{f"split/random/{name}": [(vertex,)] for name, vertex in ids.items()})
    graph = load_dataset("ogbn-small", root=tmp_path, split="random")
    assert graph.splits["train"].tolist() == [False, False, True, False]
    masks = torch.tensor([[True, True], [False, False], [False, True], [True, False]])
    saved_by_pyg(tmp_path / "WikiCS", "data_undirected.pt", train_mask=masks)
    assert load_dataset("wikics", root=tmp_path, split=1).splits["train"].tolist() == [True, False, True, False]
    with pytest.raises(InputError, match=r"split=1, for a dataset of OGB \(in .*a name is a scheme of OGB"):
        load_dataset("ogbn-small", root=tmp_path, split=1)
    with pytest.raises(InputError, match=r"task='regression', for a dataset of OGB"):
        load_dataset("ogbn-small", root=tmp_path, split="random", task="regression")
    with pytest.raises(InputError, match=r"split='random', for a dataset of PyG \(in .*a number is a column"):
        load_dataset("wikics", root=tmp_path, split="random")


def test_folders_below_and_the_folder_itself(tmp_path: Path) -> None:
    data = saved_by_pyg(tmp_path / "data" / "CitationFull" / "cora")
    for name, root in (("cora", "data"), ("citationfull/Cora", "data"), ("cora", "data/CitationFull/cora")):
        assert_same_arrays(load_dataset(name, root=tmp_path / root), from_pyg(data))


@pytest.mark.parametrize("arguments", [{"root": 5}, {"split": 1.5}, {"split": [0]}])
def test_arguments_of_other_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="argument has the wrong type"):
        load_dataset("demo", **arguments)


def test_own_datasets(tmp_path: Path) -> None:
    graph = citations()
    save_graph(graph, tmp_path / "papers")
    found = load_dataset("papers", root=tmp_path)
    assert_same_arrays(found, graph)
    assert found.name == "Cora"
    with pytest.raises(InputError, match=r"split=0, task='none', for a dataset that has one split \(in .*papers\)"):
        load_dataset("papers", root=tmp_path, split=0, task="none")
    assert load_dataset("demo", root=tmp_path).name == load_graph("demo").name


def test_several_of_a_name_are_told_apart(tmp_path: Path) -> None:
    first = saved_by_pyg(tmp_path / "a" / "cora")
    (tmp_path / "b").mkdir()
    save_graph(citations(), tmp_path / "b" / "cora")
    with pytest.raises(DatasetError, match=r"several datasets have this name: .*a/cora, .*b/cora \(in 'cora'\)"):
        load_dataset("cora", root=tmp_path)
    assert_same_arrays(load_dataset("a/cora", root=tmp_path), from_pyg(first))
    save_graph(citations(), tmp_path / "cora")
    # The one that lies in the root itself is meant.
    assert load_dataset("cora", root=tmp_path).num_vertices == 700


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pubmed", r"Fetch it once with PyG: torch_geometric\.datasets\.Planetoid\('ROOT', 'PubMed'\)\.$"),
        ("Reddit", r"torch_geometric\.datasets\.Reddit\('ROOT/Reddit'\)\.$"),
        ("ogbn-arxiv", r"ogb\.nodeproppred\.NodePropPredDataset\('ogbn-arxiv', root='ROOT'\)\.$"),
        ("ogbn_smal", r"Did you mean 'ogbn_small'\? Fetch it with PyG or OGB, or make it with 'sagann data import'"),
    ],
)  # fmt: skip
def test_a_dataset_that_is_not_there(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ogb_folder(tmp_path / "ROOT")
    with pytest.raises(DatasetError, match=message) as caught:
        load_dataset(name, root="ROOT")
    assert "dataset not found: looked in 'ROOT', where there are 'ogbn_small'" in str(caught.value)
    with pytest.raises(DatasetError, match=r"looked in 'data', 'dataset', 'datasets', where there is none"):
        load_dataset(name)


def test_a_dataset_of_many_graphs_is_one_graph_in_parts(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data")
    folder = tmp_path / "TUDataset" / "MUTAG" / "processed"
    folder.mkdir(parents=True)
    graphs = [molecule(size, smiles=None, y=torch.tensor([size % 2])) for size in (3, 1, 4)]
    data.InMemoryDataset.save(graphs, str(folder / "data.pt"))
    torch.save("transforms", folder / "pre_transform.pt")
    graph = load_dataset("mutag", root=tmp_path)
    assert (graph.name, graph.num_graphs, graph.num_vertices) == ("MUTAG", 3, 8)
    assert graph.graph_labels.tolist() == [1, 1, 0]


def test_folders_without_one_graph(tmp_path: Path) -> None:
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    with pytest.raises(
        DatasetError, match=r"PyG has not processed the dataset yet: .*Planetoid\('.*', 'Cora'\)\.$"
    ):
        load_dataset("cora", root=tmp_path, download=False)
    (tmp_path / "mine" / "raw").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"no graph in .*processed .*Open it once with PyG"):
        load_dataset("mine", root=tmp_path)
    saved_by_pyg(tmp_path / "PPI", "train.pt")
    shutil.copy(tmp_path / "PPI" / "processed" / "train.pt", tmp_path / "PPI" / "processed" / "val.pt")
    with pytest.raises(
        DatasetError, match=r"several files: train\.pt, val\.pt \(in .*processed\)\. Read one of them"
    ):
        load_dataset("ppi", root=tmp_path)


def test_a_folder_that_may_not_be_looked_into_has_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_graph(citations(), tmp_path / "mine")
    (tmp_path / "lost+found").mkdir()
    is_dir = Path.is_dir

    def refused(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    assert load_dataset("mine", root=tmp_path).num_vertices == citations().num_vertices
