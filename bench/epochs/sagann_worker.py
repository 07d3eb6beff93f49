"""sagann's contestant: ``build_model`` and a loop, as a user would write them."""

from __future__ import annotations

import importlib
from pathlib import Path

from torch import nn

from bench.epochs.graphs import graph_of
from bench.standalone.serve import UnsupportedError, serve
from bench.standalone.stored import read_stored
from bench.standalone.training import Training, read_weights
from sagann.graph import Graph
from sagann.nn import ModelConfig, build_model

OPTIONS = ("hoist", "commute", "invariant", "fuse", "split_concat")
"The compiler's optimisations, each of which the variant 'no-NAME' switches off."


def choose_engine(variant: str) -> None:
    """Run layers by the engine that a variant names; '' is what a user gets.

    Raises:
        UnsupportedError: this checkout has no compiled engine, or no such optimisation.
    """
    if not variant:
        return
    try:
        engines = importlib.import_module("sagann.saga.engine")
        if variant == "naive":
            engines.set_engine(engines.NaiveEngine())
            return
        compiled = importlib.import_module("sagann.runtime.engine").CompiledEngine
        if variant == "lean":
            engines.set_engine(compiled(lean=True))
            return
        options = importlib.import_module("sagann.compiler").CompilerOptions
        engines.set_engine(compiled(options=options(**{variant.removeprefix("no-"): False})))
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedError(f"this checkout has no engine '{variant}': {error}") from error


def config_of(specification: dict) -> ModelConfig:
    """The zoo's model that the specification asks for."""
    return ModelConfig(
        model=specification["model"],
        layers=specification["layers"],
        hidden=specification["hidden"],
        heads=specification["heads"],
        encoder="linear" if specification["encoder"] else "auto",
        dropout=0.0,
    )


def load(specification: dict, folder: Path) -> Graph:
    """The graph as the model wants it."""
    choose_engine(specification["variant"])
    graph = graph_of(read_stored(folder))
    return build_model(config_of(specification), graph).prepare(graph)


def model_of(specification: dict, graph: Graph) -> nn.Module:
    """The model with the common first weights."""
    model = build_model(config_of(specification), graph)
    model.load_state_dict(read_weights(Path(specification["folder"]), specification["model"]))
    return model


def build(specification: dict, graph: Graph) -> Training:
    """The model in the usual loop."""
    model = model_of(specification, graph)
    assert graph.labels is not None
    train = graph.splits["train"].nonzero().squeeze(1)
    hops = graph.hops(model.num_hops)
    return Training(lambda: model(hops, graph.features), model.parameters(), graph.labels, train)


if __name__ == "__main__":
    serve(load, build)
