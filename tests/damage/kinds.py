"""Kinds of files that sagann reads: small sound ones of each kind, and the commands that read them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sagann.cli.main import main
from sagann.graph import Graph, Topology
from sagann.graph.rows import csr_tensor
from sagann.plan.machine import Link
from sagann.storage import save_graph
from sagann.train import saver
from tests.plan.machines import ROUND

N = 24
SRC = np.arange(N)
DST = (SRC + 1) % N
EYE = np.eye(N, 4, dtype=np.float32)
QUICK = "--hidden 4 --epochs 1 --device cpu --engine naive --quiet"


def ring(*, is_sparse: bool = False) -> Graph:
    """A ring with features, labels, edge types, weights and splits."""
    src = torch.arange(N)
    counts = torch.arange(N + 1, dtype=torch.int32)
    sparse = csr_tensor(counts, (src % 4).int(), torch.ones(N), num_columns=4)
    edge_data = {"type": (src % 2).int(), "weight": torch.linspace(0.5, 2, N)}
    return Graph(
        topology=Topology.from_coo(src=src, dst=(src + 1) % N, num_src=N, edge_data=edge_data),
        features=sparse if is_sparse else torch.eye(N, 4) + 0.1,
        labels=src % 3,
        num_classes=3,
        splits={"train": src % 4 < 2, "val": src % 4 == 2, "test": src % 4 == 3},
        graph_ptr=torch.tensor([0, N]),
        graph_names=("a",),
        num_edge_types=2,
        name="ring",
    )


def build_datasets() -> None:
    save_graph(ring(), "dense")
    save_graph(ring(is_sparse=True), "sparse")
    save_graph(replace(ring(), targets=torch.linspace(-1, 1, 2 * N).reshape(N, 2)), "targets")


EDGE_ARRAYS: dict[str, Any] = {
    "edge_index": np.stack([SRC, DST]),
    "edge_type": SRC % 2,
    "edge_weight": np.linspace(0.5, 2, N, dtype=np.float32),
}
MASKS = {"train_mask": SRC < 12, "val_mask": SRC >= 18}
DESCRIPTION = """{"name": "ring", "directed": true, "num_nodes": 24, "num_classes": 3, "num_edge_types": 2,
"class_names": ["a", "b", "c"], "edges_stored": "both directions"}"""


def build_archives() -> None:
    arrays = EDGE_ARRAYS | MASKS | {"labels": SRC % 3, "graph_ptr": np.array([0, N])}
    np.savez("plain.npz", **arrays, features=EYE)
    Path("plain.json").write_text(DESCRIPTION)
    rows = {"indptr": np.arange(N + 1), "indices": SRC % 4, "data": np.ones(N, "f4"), "shape": np.array([N, 4])}
    arrays |= {f"features_{name}": array for name, array in rows.items()}
    np.savez_compressed("packed.npz", **arrays, targets=np.linspace(-1, 1, N))


def csv(*columns: Any, names: str = "") -> str:
    return names + "".join(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def build_tables() -> None:
    """Edges, features, labels and targets as text, as arrays and in Parquet files."""
    edges = csv(SRC, DST, SRC + 0.5, SRC % 2)
    Path("edges.csv").write_text("from,to,km,kind\n" + edges)
    Path("bare.csv.gz").write_bytes(gzip.compress(edges.encode()))
    Path("x.csv").write_text(csv(SRC / 2, SRC % 3, names="a,b\n"))
    Path("y.csv").write_text(csv(SRC % 3))
    Path("parts").mkdir()
    for part in range(2):
        Path(f"parts/{part}.tsv").write_text(csv(SRC, DST, names="from,to\n").replace(",", "\t"))
    np.save("x.npy", EYE)
    np.save("y.npy", SRC % 3)
    np.save("t.npy", np.linspace(-1, 1, 2 * N).reshape(N, 2))
    pq.write_table(pa.table({"from": SRC, "to": DST, "km": SRC + 0.5, "kind": SRC % 2}), "edges.parquet")
    pq.write_table(pa.table({"a": SRC / 2, "b": SRC}), "x.parquet")
    pq.write_table(pa.table({"y": SRC % 3}), "y.parquet")


def build_ogb() -> None:
    """Both layouts of OGB: text in the folder tables, arrays in the folder archives."""
    parts = {"train": SRC[:12], "valid": SRC[12:18], "test": SRC[18:]}
    splits = {f"split/time/{name}": csv(part) for name, part in parts.items()}
    tables = {"edge": csv(SRC, DST), "node-feat": csv(SRC / 2, SRC), "node-label": csv(SRC % 3)}
    tables |= {"num-node-list": f"{N}\n", "num-edge-list": f"{N}\n"}
    raw = {f"tables/raw/{name}": table for name, table in tables.items()}
    raw |= {f"{folder}/{name}": text for folder in ("tables", "archives") for name, text in splits.items()}
    for name, text in raw.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    Path("archives/raw").mkdir()
    arrays: dict[str, Any] = {"node_feat": np.ones((N, 2), "f2"), "edge_feat": np.ones((N, 3), "f4")}
    np.savez("archives/raw/data.npz", edge_index=np.stack([SRC, DST]), num_nodes_list=np.array([N]), **arrays)
    np.savez("archives/raw/node-label.npz", node_label=SRC[:, None] % 3.0)


METADATA = f"""\
dataset_name: small
graph:
  nodes: [{{num: {N}}}]
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
    Path("bolt").mkdir()
    Path("bolt/metadata.yaml").write_text(METADATA)
    Path("bolt/edges.csv").write_text(csv(SRC, DST))
    for name, array in {"x": EYE, "w": np.linspace(1, 2, N), "s": SRC[:12], "y": SRC[:12] % 3}.items():
        np.save(f"bolt/{name}.npy", array)


def build_pyg() -> None:
    """Graphs that PyG has saved: as a mapping, and as files of datasets of one graph and of several."""
    arrays = EDGE_ARRAYS | MASKS | {"x": EYE, "y": SRC % 3}
    fields = {name: torch.from_numpy(array) for name, array in arrays.items()} | {"name": "ring", "pos": None}
    torch.save(fields, "dict.pt")
    torch.save((fields, {"x": torch.tensor([0, N]), "edge_index": torch.tensor([0, N])}), "sliced.pt")
    edge_index, y = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 2]]), torch.tensor([0, 1, 1])
    many = {"edge_index": edge_index, "edge_attr": torch.rand(4, 2), "y": y, "_num_nodes": [2, 1, 3]}
    bounds = {"edge_index": [0, 2, 2, 4], "edge_attr": [0, 2, 2, 4], "y": [0, 1, 2, 3]}
    torch.save((many, {name: torch.tensor(bound) for name, bound in bounds.items()}), "many.pt")


CONFIG = """\
[data]
data = "ring"
split = "random:0.5,0.2"
undirected = false
[model]
model = "gat"
layers = 2
hidden = 8
dropout = 0.5
heads = 2
encoder = "none"
[train]
optimizer = "SGD"
lr = 0.01
optimizer_options = {momentum = 0.9, nesterov = true}
scheduler = "StepLR"
scheduler_options = {step_size = 1, gamma = 0.5}
clip_norm = 1.0
seed = 1
device = "cpu"
monitor = "val/loss"
patience = 3
checkpoint_every = 1
engine = "naive"
"""


def build_settings() -> None:
    """A configuration, and the file of a machine with a second device and links, for one dataset."""
    save_graph(ring(), "ring")
    Path("run.toml").write_text(CONFIG)
    link = Link(bytes_per_s=1e9, latency_s=1e-6, switches=("root",))
    device = {"matmul_flops": 2e9, "disk": "disk0"}
    machine = replace(ROUND, switches={"root": 1e9}, links={"link0-1": link}, devices={"device1": device})
    Path("machine.toml").write_text(machine.to_toml())


def train(options: str = "", *, is_killed: bool = False) -> None:
    """The folder of a run, of one that was killed after its last epoch if so stated."""
    save_graph(ring(), "ring")
    assert main(f"train --data ring {QUICK} --checkpoint-every 1 {options} --out run".split()) == 0
    if is_killed:
        Path("run/metrics.json").unlink()
        Path("run/model.safetensors").unlink()


def build_checkpoint() -> None:
    """A killed run with one checkpoint: beside another, a damaged one would be passed over."""
    options = "--epochs 2 --patience 5 --keep-checkpoints 1 --scheduler StepLR --scheduler-option step_size=1"
    train(options, is_killed=True)


MODEL = """\
import torch
from parts import Scaled
from sagann.nn import SAGE
class Net(torch.nn.Module):
    def __init__(self, in_dim, out_dim, widths: list, factor: float = 1.0, is_bent=True):
        super().__init__()
        self.layer = SAGE(in_dim, out_dim)
        self.maps = torch.nn.ModuleList(Scaled(in_dim, out_dim, factor) for _ in widths)
    def forward(self, hops, x):
        return self.layer(hops[0], x) + sum(each(x) for each in self.maps)
"""
PARTS = """\
import torch
class Scaled(torch.nn.Linear):
    def __init__(self, in_dim, out_dim, factor):
        super().__init__(in_dim, out_dim)
        self.factor = factor
    def get_extra_state(self):
        return {"factor": self.factor, 1: (2.0, None)}
    def set_extra_state(self, state):
        self.factor = state["factor"]
"""


def build_own_model() -> None:
    """The folder of a run of a model in a file of its own, with options and an extra state."""
    Path("mine.py").write_text(MODEL)
    Path("parts.py").write_text(PARTS)
    options = "--model-option widths=[1,2] --model-option factor=0.5 --model-option is_bent=false"
    train(f"--model mine.py:Net {options}")


def build_sampled() -> None:
    """The folder of a run of mini-batches that was killed within its second epoch."""
    # As if a batch took seconds: a checkpoint is written after each.
    with mock.patch.object(saver, "_MOST_UNSAVED_S", 0.0), mock.patch.object(saver, "_LEAST_SPACING", 0):
        train("--epochs 2 --sample 2,2 --batch-size 4 --patience 5 --keep-checkpoints 99", is_killed=True)
    for checkpoint in set(Path("run/checkpoints").iterdir()) - {
        Path("run/checkpoints/epoch-000001-batch-000002.pt")
    }:
        checkpoint.unlink()


IMPORT = "data import edges"
EDGES = "--weight 2 --edge-type 3"
OWN = "--model mine.py:Net --quiet"
KINDS: dict[str, tuple[Callable[[], None], list[str]]] = {
    "dataset folder": (
        build_datasets,
        [
            f"{name}/* | {command}"
            for name, task in (("dense", ""), ("sparse", ""), ("targets", "--task regression"))
            for command in (
                f"data info {name}",
                f"data check {name}",
                f"data reorder {name} near --by degree",
                f"plan --data {name} {task} --hidden 4 --quiet",
                f"train --data {name} {task} {QUICK} --no-verify --out run",
            )
        ],
    ),
    "NPZ archive": (
        build_archives,
        [
            "plain.* | data info plain.npz",
            "plain.* | data import plain.npz a",
            f"plain.* | train --data plain.npz {QUICK} --out run",
            "packed.npz | data import packed.npz a",
            f"packed.npz | train --data packed.npz {QUICK} --task classification --out run",
            f"packed.npz | train --data packed.npz {QUICK} --task regression --out run",
        ],
    ),
    "CSV tables": (
        build_tables,
        [
            f"[exy]*.csv | {IMPORT}.csv a {EDGES} --features x.csv --labels y.csv",
            f"[exy]*.csv | {IMPORT}.csv a --src from --dst to --symmetrise --targets x.csv",
            f"bare.csv.gz | data import bare.csv.gz a {EDGES} --coalesce",
            "parts/* | data import parts a --num-vertices 24",
        ],
    ),
    "NPY arrays": (build_tables, [f"*.npy | {IMPORT}.csv a --features x.npy --labels y.npy --targets t.npy"]),
    "Parquet tables": (
        build_tables,
        [
            f"*.parquet | {IMPORT}.parquet a {EDGES} --features x.parquet --labels y.parquet",
            f"*.parquet | {IMPORT}.parquet a --targets x.parquet",
        ],
    ),
    "OGB folder": (build_ogb, [f"{name}/* | data import {name} a" for name in ("tables", "archives")]),
    "GraphBolt folder": (build_graphbolt, ["bolt/* | data import bolt a"]),
    "PyG file": (build_pyg, [f"{name}.pt | data import {name}.pt a" for name in ("dict", "sliced", "many")]),
    "configuration": (build_settings, ["run.toml | train --config run.toml --epochs 2 --out run --quiet"]),
    "machine": (
        build_settings,
        ["machine.toml | plan --data ring --hidden 4 --memory 1MiB --machine machine.toml --quiet"],
    ),
    "run folder": (
        train,
        [
            "run/* | evaluate --run run --quiet",
            "run/* | predict --run run --out p.csv --quiet",
            "run/* | embed --run run --data ring --out e.npy --quiet",
            "run/* | plan --config run/config.toml --quiet",
            "run/* | train --resume --out run --epochs 2 --quiet",
            "run/* | train --config run/config.toml --epochs 1 --out run --overwrite --quiet",
        ],
    ),
    "checkpoint": (
        build_checkpoint,
        [
            "run/checkpoints/* | evaluate --run run --quiet",
            "run/checkpoints/* | train --resume --out run --epochs 3 --quiet",
        ],
    ),
    "run of an own model": (
        build_own_model,
        [f"run/* | evaluate --run run {OWN}", f"run/* | train --resume --out run --epochs 2 {OWN}"],
    ),
    "sampled run": (
        build_sampled,
        ["run/* | evaluate --run run --quiet", "run/* | train --resume --out run --epochs 3 --quiet"],
    ),
}
"By name: what writes sound files into the current folder, and each reader: a pattern of files, and a command that reads them."
