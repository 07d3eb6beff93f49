"""One of the processes that train together: it trains epochs on request.

All processes of a group get the same requests: ``{"epochs": n}``, ``{"balance": n}`` (epochs after which vertices may move),
``{"bounds": [...]}`` (move now). Each answers with numbers of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.hybrid.runs import Run, predictor_of
from bench.standalone.serve import answer_requests
from bench.standalone.training import LEARNING_RATE
from sagann.runtime.workers import join_workers
from sagann.storage import load_graph
from sagann.train.balancer import REPAY_EPOCHS, Balancer
from sagann.train.epoch_source import WholeGraph


@contextmanager
def training(specification: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Callable[[dict], dict]]]:
    """A model in the loop that trains it, as one of the workers, which is ready."""
    os.environ.update(specification["environment"])
    # The parent wrote the files, so they are not checked.
    graph = load_graph(Path(specification["folder"]), verify=False)
    with join_workers(timeout_s=600) as workers:
        predictor = predictor_of(graph, specification["model"], specification["hidden"], workers=workers)
        prepared = predictor.prepare(graph, validate=False)
        part = prepared.part
        assert part is not None
        optimizer = torch.optim.Adam(predictor.model.parameters(), lr=LEARNING_RATE)
        with Run(WholeGraph(predictor, prepared), optimizer) as run:
            balancer = Balancer(part)

            def answer(request: dict[str, Any]) -> dict[str, Any]:
                if "bounds" in request:
                    part.move(request["bounds"])
                    return {"edges": part.topology.num_edges}
                if "epochs" in request:
                    return {"seconds": run(request["epochs"])}
                balancer.begin()
                # As in a run that goes on for long. Workers end an epoch together, because they add their gradients.
                return {
                    "epochs": [
                        {"epoch_s": run(1)[0], **balancer.settle(REPAY_EPOCHS)} for _ in range(request["balance"])
                    ]
                }

            # This compiles; gathers of constant features are kept from here on.
            run(2)
            yield {}, answer


if __name__ == "__main__":
    answer_requests(training)
