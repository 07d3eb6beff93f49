"""Models and fanouts of sampled epochs, and the graph that they are sampled from."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.epochs.graphs import write_weights
from bench.standalone.stored import Stored, write_stored
from sagann.graph import Topology, rmat_edges
from sagann.nn import ModelConfig

NUM_CLASSES = 40
REHEARSAL = (3000, 30_000)
"Vertices and edges of the graph on which workers compile and import."


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, and how it is sampled."""

    model: str
    "Name in the zoo."
    fanouts: tuple[int, ...]
    "Number of in-edges that a destination of each hop gives; the first one is that of the hop nearest the seeds."

    @classmethod
    def named(cls, text: str) -> Task:
        """The task that MODEL:FANOUTS names."""
        model, _, fanouts = text.partition(":")
        return cls(model=model, fanouts=tuple(map(int, fanouts.split(","))))

    @property
    def caption(self) -> str:
        """Name in sentences."""
        return f"{self.model}, fanouts {', '.join(map(str, self.fanouts))}"

    def specification(self, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
        """What every worker is told; the first weights of the model are written."""
        config = ModelConfig(
            model=self.model, layers=len(self.fanouts), hidden=options.hidden, dropout=0.0, encoder="none"
        )
        write_weights(folder, [config], options.features, NUM_CLASSES)
        return {
            "model": self.model,
            "fanouts": list(self.fanouts),
            "layers": len(self.fanouts),
            "hidden": options.hidden,
            "heads": 8,
            "dropout": 0.0,
            "batch_size": options.batch_size,
            "threads": options.threads,
            "device": options.device,
            "folder": str(folder),
        }


TASKS = tuple(map(Task.named, ("sage:25,10", "gat:25,10", "sage:15,10,5")))


def generated(num_vertices: int, num_edges: int, num_features: int, num_seeds: int) -> Stored:
    """A power-law graph with random features, labels and training vertices."""
    src, dst = rmat_edges(num_vertices, num_edges, seed=0)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_vertices)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(num_vertices, generator=generator)
    return Stored(
        indptr=topology.indptr,
        src=topology.indices,
        features=torch.randn(num_vertices, num_features, generator=generator),
        labels=torch.randint(NUM_CLASSES, (num_vertices,), generator=generator),
        train=order[:num_seeds].sort().values,
        val=order[num_seeds : num_seeds + 1],
        num_classes=NUM_CLASSES,
    )


def write_graph(folder: Path, options: argparse.Namespace) -> None:
    """Write the graph, and beside it a small one for rehearsing."""
    write_stored(folder, generated(int(options.vertices), int(options.edges), options.features, int(options.seeds)))
    write_stored(folder / "rehearsal", generated(*REHEARSAL, options.features, options.batch_size))
