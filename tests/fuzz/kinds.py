"""Kinds of files that sagann reads: a folder of small sound ones for each kind, and the commands that read them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sagann.graph import Graph, Topology
from sagann.graph.rows import csr_tensor
from sagann.plan.machine import Link
from sagann.storage import save_graph
from sagann.toml_text import toml_value
from tests.plan.machines import ROUND

N = 24
"Number of vertices of the sound graphs."
Command = tuple[str, ...]
"Words after ``sagann`` on the command line; or LOAD, and the name of a dataset in the current folder."
LOAD = "load_dataset"
QUICK = ("--hidden", "4", "--epochs", "1", "--device", "cpu", "--quiet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of files."""

    name: str
    "Name of the kind."
    build: Callable[[], None]
    "Writes sound files into the current folder."
    victims: tuple[str, ...]
    "Patterns of the files that are damaged."
    commands: tuple[Command, ...]
    "Commands that read the files, all in the folder of the files."
    whole: bool = False
    "Whether a case is kept with all files of the folder, which belong together; else with those that are damaged."


def graph(*, sparse: bool = False) -> Graph:
    """A ring with features, labels, types, weights and splits, in two graphs without edges between them."""
    src = torch.arange(N)
    half = N // 2
    topology = Topology.from_coo(
        src=src,
        dst=(src + 1) % half + src // half * half,
        num_src=N,
        edge_data={"type": (src % 2).int(), "weight": torch.linspace(0.5, 2, N)},
    )
    features = torch.eye(N, 4) + 0.1
    if sparse:
        counts, columns = torch.arange(N + 1, dtype=torch.int32), (src % 4).int()
        features = csr_tensor(counts, columns, torch.ones(N), num_columns=4)
    return Graph(
        topology=topology,
        features=features,
        labels=src % 3,
        num_classes=3,
        splits={"train": src % 4 < 2, "val": src % 4 == 2, "test": src % 4 == 3},
        graph_ptr=torch.tensor([0, half, N]),
        graph_names=("a", "b"),
        num_edge_types=2,
        name="ring",
    )


def arrays() -> dict[str, np.ndarray]:
    """The arrays of an archive."""
    ring = graph()
    assert ring.labels is not None
    return {
        "edge_index": np.stack([ring.topology.indices.numpy(), ring.topology.edge_dst().numpy()]),
        "features": np.eye(N, 4, dtype=np.float32),
        "labels": ring.labels.numpy(),
        "train_mask": ring.splits["train"].numpy(),
        "val_mask": ring.splits["val"].numpy(),
        "edge_type": ring.topology.edge_data["type"].numpy(),
        "edge_weight": ring.topology.edge_data["weight"].numpy(),
        "graph_ptr": np.array([0, N // 2, N]),
    }


def build_dataset() -> None:
    """Dataset folders with dense features, with sparse ones, and with targets beside the labels."""
    save_graph(graph(), "dense")
    save_graph(graph(sparse=True), "sparse")
    save_graph(replace(graph(), targets=torch.linspace(-1, 1, 2 * N).reshape(N, 2)), "targets")


def build_archive() -> None:
    """A plain archive with a description, and a compressed one with sparse features."""
    np.savez("plain.npz", **arrays())  # type: ignore[arg-type]
    Path("plain.json").write_text(
        '{"name": "ring", "directed": true, "num_nodes": 24, "num_classes": 3, "num_edge_types": 2, '
        '"class_names": ["a", "b", "c"], "edges_stored": "both directions"}'
    )
    dense = arrays()
    del dense["features"]
    np.savez_compressed(
        "packed.npz",
        **dense,  # type: ignore[arg-type]
        features_indptr=np.arange(N + 1),
        features_indices=np.arange(N) % 4,
        features_data=np.ones(N, np.float32),
        features_shape=np.array([N, 4]),
        targets=np.linspace(-1, 1, N),
    )


def _rows() -> list[tuple[object, ...]]:
    return [(at, (at + 1) % N, 0.5 + at, at % 2) for at in range(N)]


def _csv(rows: list[tuple[object, ...]], names: str = "") -> str:
    return names + "".join(",".join(map(str, row)) + "\n" for row in rows)


def build_csv() -> None:
    """Edge lists with names and without, plain and compressed, with features and labels."""
    Path("edges.csv").write_text(_csv(_rows(), "from,to,km,kind\n"))
    Path("bare.csv.gz").write_bytes(gzip.compress(_csv(_rows()).encode()))
    Path("x.csv").write_text(_csv([(0.5 * at, 1, at % 3) for at in range(N)], "a,b,c\n"))
    Path("y.csv").write_text(_csv([(at % 3,) for at in range(N)]))
    Path("parts").mkdir()
    for part in range(2):
        rows = [row[:2] for row in _rows()[part::2]]
        Path(f"parts/{part}.tsv").write_text(_csv(rows, "from,to\n").replace(",", "\t"))


def build_arrays() -> None:
    """An edge list with features, labels and targets as arrays."""
    Path("edges.csv").write_text(_csv(_rows(), "from,to,km,kind\n"))
    np.save("x.npy", np.eye(N, 4, dtype=np.float32))
    np.save("y.npy", np.arange(N) % 3)
    np.save("t.npy", np.linspace(-1, 1, 2 * N).reshape(N, 2))


def build_parquet() -> None:
    """An edge list with features and labels in Parquet files."""
    names = ["from", "to", "km", "kind"]
    columns = [list(column) for column in zip(*_rows(), strict=True)]
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), "edges.parquet")
    pq.write_table(pa.table({"a": [0.5] * N, "b": list(range(N))}), "x.parquet")
    pq.write_table(pa.table({"y": [at % 3 for at in range(N)]}), "y.parquet")


def build_ogb() -> None:
    """A folder of OGB in each of its two layouts."""
    files = {
        "raw/edge": [(at, (at + 1) % N) for at in range(N)],
        "raw/node-feat": [(0.5, at) for at in range(N)],
        "raw/node-label": [(at % 3,) for at in range(N)],
        "raw/num-node-list": [(N,)],
        "raw/num-edge-list": [(N,)],
        "split/time/train": [(at,) for at in range(12)],
        "split/time/valid": [(at,) for at in range(12, 18)],
        "split/time/test": [(at,) for at in range(18, N)],
    }
    for name, rows in files.items():
        for folder in ("tables", "archives"):
            if folder == "tables" or name.startswith("split"):
                path = Path(folder, f"{name}.csv.gz")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(_csv(list(rows)).encode(), mtime=0))
    Path("archives/raw").mkdir()
    np.savez(
        "archives/raw/data.npz",
        edge_index=arrays()["edge_index"],
        node_feat=np.ones((N, 2), np.float16),
        edge_feat=np.ones((N, 3), np.float32),
        num_nodes_list=np.array([N]),
    )
    np.savez("archives/raw/node-label.npz", node_label=np.arange(N, dtype=np.float32)[:, None] % 3)


METADATA = f"""\
dataset_name: small
graph:
  nodes:
    - num: {N}
  edges:
    - format: csv
      path: edges.csv
feature_data:
  - {{domain: node, type: null, name: feat, format: numpy, path: x.npy}}
  - {{domain: edge, type: null, name: weight, format: numpy, path: w.npy}}
tasks:
  - name: node_classification
    num_classes: 3
    train_set:
      - data:
          - {{name: seeds, format: numpy, path: s.npy}}
          - {{name: labels, format: numpy, path: y.npy}}
"""


def build_graphbolt() -> None:
    """A folder of GraphBolt."""
    Path("bolt").mkdir()
    Path("bolt/metadata.yaml").write_text(METADATA)
    Path("bolt/edges.csv").write_text(_csv([(at, (at + 1) % N) for at in range(N)]))
    np.save("bolt/x.npy", np.eye(N, 4, dtype=np.float32))
    np.save("bolt/w.npy", np.linspace(1, 2, N))
    np.save("bolt/s.npy", np.arange(12))
    np.save("bolt/y.npy", np.arange(12) % 3)


def build_pyg() -> None:
    """Graphs that PyG has saved: as a mapping, and as files of datasets of one graph and of several."""
    found = {name: torch.from_numpy(rows) for name, rows in arrays().items()}
    masks = {name: found[name] for name in ("train_mask", "val_mask")}
    edges = {name: found[name] for name in ("edge_index", "edge_weight", "edge_type")}
    fields = {"x": found["features"], "y": found["labels"], "name": "ring", "pos": None, **masks, **edges}
    torch.save(fields, "dict.pt")
    # Beside where it is imported from, as PyG keeps it.
    Path("ring/processed").mkdir(parents=True)
    slices = {"x": torch.tensor([0, N]), "edge_index": torch.tensor([0, N])}
    for path in ("sliced.pt", "ring/processed/data.pt"):
        torch.save((fields, slices), path)
    many = {
        "edge_index": torch.tensor([[0, 1, 0, 1], [1, 0, 1, 2]]),
        "edge_attr": torch.rand(4, 2),
        "y": torch.tensor([0, 1, 1]),
        "_num_nodes": [2, 1, 3],
    }
    bounds = {"edge_index": [0, 2, 2, 4], "edge_attr": [0, 2, 2, 4], "y": [0, 1, 2, 3]}
    torch.save((many, {name: torch.tensor(each) for name, each in bounds.items()}), "many.pt")


CONFIG = {
    "data": {"data": "ring", "split": "random:0.5,0.2", "undirected": False, "normalise_features": False},
    "model": {
        "model": "gat",
        "layers": 2,
        "hidden": 8,
        "dropout": 0.5,
        "heads": 2,
        "out_heads": 1,
        "encoder": "none",
    },
    "train": {
        "epochs": 2,
        "optimizer": "SGD",
        "lr": 0.01,
        "weight_decay": 0.0,
        "optimizer_options": {"momentum": 0.9, "nesterov": True},
        "scheduler": "StepLR",
        "scheduler_options": {"step_size": 1, "gamma": 0.5},
        "clip_norm": 1.0,
        "seed": 1,
        "device": "cpu",
        "memory": "64MiB",
        "monitor": "val/loss",
        "patience": 3,
        "eval_every": 1,
        "checkpoint_every": 1,
        "keep_checkpoints": 1,
        "engine": "compiled",
    },
}


def build_config() -> None:
    """A configuration, and the dataset that it names."""
    save_graph(graph(), "ring")
    tables = "".join(
        f"[{name}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in table.items())
        for name, table in CONFIG.items()
    )
    Path("run.toml").write_text(tables)


def build_machine() -> None:
    """The file of a machine with a second device and links, and a dataset to plan for."""
    save_graph(graph(), "ring")
    machine = replace(
        ROUND,
        switches={"root": 1e9},
        links={"link0-1": Link(bytes_per_s=1e9, latency_s=1e-6, switches=("root",))},
        devices={"device1": {"matmul_flops": 2e9, "disk": "disk0"}},
    )
    Path("machine.toml").write_text(machine.to_toml())


def _trained(*options: str) -> None:
    from sagann.cli.main import main

    save_graph(graph(), "ring")
    arguments = ["train", "--data", "ring", *QUICK, *options, "--checkpoint-every", "1", "--out", "run"]
    assert main(arguments) == 0


def build_run() -> None:
    """The folder of a finished run."""
    _trained()


def build_checkpoints() -> None:
    """The folder of a run that was killed after its second epoch."""
    # With a second checkpoint, a damaged one would be passed over.
    schedule = ("--scheduler", "StepLR", "--scheduler-option", "step_size=1")
    _trained("--epochs", "2", "--patience", "5", "--keep-checkpoints", "1", *schedule)
    for name in ("metrics.json", "model.safetensors"):
        Path("run", name).unlink()


MODEL = """\
import torch
from sagann.nn import SAGE
from parts import Scaled
class Net(torch.nn.Module):
    def __init__(self, in_dim, out_dim, widths: list, factor: float = 1.0, name="a", is_bent=True):
        super().__init__()
        self.layer = SAGE(in_dim, out_dim)
        self.maps = torch.nn.ModuleList(Scaled(in_dim, out_dim, factor) for _ in widths)
        self.is_bent = is_bent
    def forward(self, hops, x):
        rows = self.layer(hops[0], x) + sum(each(x) for each in self.maps)
        return torch.tanh(rows) if self.is_bent else rows
"""
PARTS = """\
import torch
class Scaled(torch.nn.Linear):
    def __init__(self, in_dim, out_dim, factor):
        super().__init__(in_dim, out_dim)
        self.factor = factor
    def forward(self, rows):
        return super().forward(rows) * self.factor
    def get_extra_state(self):
        return {"factor": self.factor, 1: (2.0, None)}
    def set_extra_state(self, state):
        self.factor = state["factor"]
"""
OWN = ("--model", "mine.py:Net")


def build_own_model() -> None:
    """The folder of a run of a model in a file of its own, with options and an extra state."""
    Path("mine.py").write_text(MODEL)
    Path("parts.py").write_text(PARTS)
    options = ("widths=[1, 2]", "factor=0.5", "name=b", "is_bent=false")
    _trained(*OWN, *(word for text in options for word in ("--model-option", text)))


def build_sampled() -> None:
    """The folder of a run of mini-batches that was killed within its second epoch."""
    from sagann.cli.main import main
    from sagann.train import saver
    from sagann.train.checkpoint import Checkpoint, CheckpointFolder

    write = CheckpointFolder.write

    def killed(self: CheckpointFolder, checkpoint: Checkpoint) -> Path:
        path = write(self, checkpoint)
        if (checkpoint.position.epoch, checkpoint.position.batch) == (1, 2):
            raise RuntimeError("killed")
        return path

    save_graph(graph(), "ring")
    sampled = ("--sample", "2,2", "--batch-size", "4", "--patience", "5", "--keep-checkpoints", "1")
    with (
        mock.patch.object(saver, "_MOST_UNSAVED_S", 0.0),
        mock.patch.object(saver, "_LEAST_SPACING", 0),
        mock.patch.object(CheckpointFolder, "write", killed),
    ):
        code = main(["train", "--data", "ring", *QUICK, "--epochs", "2", *sampled, "--out", "run"])
    assert code == 1
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["epoch-000001-batch-000002"]


_EDGES = ("--weight", "2", "--edge-type", "3")
KINDS = (
    Kind(
        name="dataset folder",
        build=build_dataset,
        victims=("dense/*", "sparse/*", "targets/*"),
        commands=(
            *(
                command
                for name in ("dense", "sparse", "targets")
                for command in (
                    ("data", "info", name),
                    ("data", "check", name),
                    ("data", "reorder", name, f"{name}-near", "--by", "degree"),
                    (LOAD, name),
                )
            ),
            *(
                command
                for name in ("dense", "sparse")
                for command in (
                    ("plan", "--data", name, "--hidden", "4", "--quiet"),
                    ("train", "--data", name, *QUICK, "--out", f"run-{name}"),
                    ("train", "--data", name, *QUICK, "--no-verify", "--memory", "1MiB", "--out", f"run-{name}"),
                )
            ),
            ("train", "--data", "targets", *QUICK, "--task", "regression", "--out", "run-targets"),
            ("train", "--data", "targets", *QUICK, "--task", "classification", "--out", "run-labels"),
        ),
    ),
    Kind(
        name="NPZ archive",
        build=build_archive,
        victims=("*.npz", "*.json"),
        commands=(
            *(
                command
                for name in ("plain.npz", "packed.npz")
                for command in (
                    ("data", "info", name),
                    ("data", "import", name, f"{name}.d"),
                    (LOAD, name),
                    ("train", "--data", name, *QUICK, "--task", "classification", "--out", f"run-{name}"),
                )
            ),
            ("train", "--data", "packed.npz", *QUICK, "--task", "regression", "--out", "run-values"),
        ),
    ),
    Kind(
        name="CSV tables",
        build=build_csv,
        victims=("*.csv", "*.csv.gz", "parts/*"),
        commands=(
            ("data", "import", "edges.csv", "a", *_EDGES, "--features", "x.csv", "--labels", "y.csv"),
            ("data", "import", "edges.csv", "b", "--src", "from", "--dst", "to", "--symmetrise"),
            ("data", "import", "bare.csv.gz", "c", *_EDGES, "--coalesce"),
            ("data", "import", "parts", "d", "--num-vertices", "24"),
            ("data", "import", "edges.csv", "e", "--targets", "x.csv"),
        ),
    ),
    Kind(
        name="NPY arrays",
        build=build_arrays,
        victims=("*.npy",),
        commands=(
            ("data", "import", "edges.csv", "a", "--features", "x.npy", "--labels", "y.npy", "--targets", "t.npy"),
        ),
    ),
    Kind(
        name="Parquet tables",
        build=build_parquet,
        victims=("*.parquet",),
        commands=(
            ("data", "import", "edges.parquet", "a", *_EDGES),
            ("data", "import", "edges.parquet", "b", "--features", "x.parquet", "--labels", "y.parquet"),
            ("data", "import", "edges.parquet", "c", "--targets", "x.parquet"),
        ),
    ),
    Kind(
        name="OGB folder",
        build=build_ogb,
        victims=("tables/**/*.gz", "archives/**/*.npz", "archives/**/*.gz"),
        commands=(
            ("data", "import", "tables", "a"),
            ("data", "import", "archives", "b"),
            (LOAD, "tables"),
            (LOAD, "archives"),
        ),
    ),
    Kind(
        name="GraphBolt folder",
        build=build_graphbolt,
        victims=("bolt/*",),
        commands=(("data", "import", "bolt", "a"),),
    ),
    Kind(
        name="PyG file",
        build=build_pyg,
        victims=("*.pt", "ring/processed/*"),
        commands=(
            ("data", "import", "dict.pt", "a"),
            ("data", "import", "sliced.pt", "b"),
            ("data", "import", "many.pt", "c"),
            (LOAD, "ring"),
        ),
    ),
    Kind(
        name="configuration",
        build=build_config,
        victims=("run.toml",),
        commands=(("train", "--config", "run.toml", "--out", "run", "--quiet"),),
    ),
    Kind(
        name="machine",
        build=build_machine,
        victims=("machine.toml",),
        commands=(
            ("plan", "--data", "ring", "--hidden", "4", "--memory", "1MiB", "--machine", "machine.toml", "--quiet"),
        ),
    ),
    Kind(
        name="run folder",
        build=build_run,
        victims=("run/*.json", "run/*.jsonl", "run/*.toml", "run/*.safetensors"),
        commands=(
            ("evaluate", "--run", "run", "--quiet"),
            ("predict", "--run", "run", "--out", "p.csv", "--quiet"),
            ("embed", "--run", "run", "--data", "ring", "--out", "e.npy", "--memory", "1MiB", "--quiet"),
            ("plan", "--config", "run/config.toml", "--quiet"),
            ("train", "--resume", "--out", "run", "--epochs", "2", "--quiet"),
            ("train", "--config", "run/config.toml", "--out", "run", "--overwrite", "--quiet"),
        ),
        whole=True,
    ),
    Kind(
        name="checkpoint",
        build=build_checkpoints,
        victims=("run/checkpoints/*/*",),
        commands=(
            ("evaluate", "--run", "run", "--quiet"),
            ("train", "--resume", "--out", "run", "--epochs", "3", "--quiet"),
        ),
        whole=True,
    ),
    Kind(
        name="run of an own model",
        build=build_own_model,
        victims=("run/*.json", "run/*.toml", "run/*.safetensors", "run/checkpoints/*/*"),
        commands=(
            ("evaluate", "--run", "run", *OWN, "--quiet"),
            ("train", "--resume", "--out", "run", "--epochs", "2", *OWN, "--quiet"),
            ("train", "--config", "run/config.toml", "--out", "run", "--overwrite", *OWN, "--quiet"),
        ),
        whole=True,
    ),
    Kind(
        name="sampled run",
        build=build_sampled,
        victims=("run/*.json", "run/*.jsonl", "run/checkpoints/*/*"),
        commands=(
            ("evaluate", "--run", "run", "--quiet"),
            ("train", "--resume", "--out", "run", "--epochs", "3", "--quiet"),
        ),
        whole=True,
    ),
)
