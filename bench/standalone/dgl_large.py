"""DGL on a graph that may be larger than memory: unweighted sums over 32-bit ids. Run by DGL's own Python, without sagann.

Rows are scaled before and after the sum, on the narrow side, which is DGL's fastest and leanest form of a GCN layer; the
scales are those of in-degrees at both ends, as the model wants them.
"""

from __future__ import annotations

from pathlib import Path

import dgl
import torch
from dgl_epochs import RENAMED, Loaded, Model
from large import specification, train
from stored import map_dataset
from training import Training, copy_weights


def main() -> None:
    asked = specification()
    stored = map_dataset(Path(asked["dataset"]))
    graph = dgl.add_self_loop(dgl.graph((stored.src, stored.dst()), num_nodes=stored.num_vertices))
    scale = graph.in_degrees().to(torch.float32).rsqrt()[:, None]
    loaded = Loaded(graph, stored, scale, torch.empty(0))
    model = Model(asked, stored.features.shape[1], asked["classes"])
    copy_weights(asked["weights"], "gcn", model, RENAMED["gcn"])
    training = Training(lambda: model(stored.features, loaded), model, stored.labels, stored.train, lr=asked["lr"])
    train(training, asked["epochs"])


if __name__ == "__main__":
    main()
