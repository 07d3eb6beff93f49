from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.cli.fit_memory import check_memory, least_bytes
from sagann.cli.run_settings import RunSettings, merge, settings_of
from sagann.errors import InputError
from sagann.free_space import Memory
from sagann.graph import Graph, rmat_graph
from sagann.nn import MODELS, ModelConfig, build_model


def settings(**given: Any) -> RunSettings:
    return settings_of(merge({}, {"data": "demo", "device": "cpu", **given}))


@pytest.fixture
def graph() -> Graph:
    return rmat_graph(1000, 5000, num_features=10, num_classes=3, seed=0)


def test_what_is_needed_at_least(graph: Graph) -> None:
    # Weights with gradients; where it is not streamed what layer 2 is given; run as it is written, its copy on the edges.
    assert least_bytes(settings(hidden=16), graph) == 4 * 2 * 10 * 16
    assert least_bytes(settings(hidden=16, engine="lean"), graph) == 4 * (2 * 10 * 16 + 1000 * 16)
    assert least_bytes(settings(hidden=16, engine="naive"), graph) == 4 * (2 * 10 * 16 + 1000 * 16 + 5000 * 16)
    assert least_bytes(settings(hidden=16), replace(graph, features=None)) == 4 * 1000 * 16
    assert least_bytes(settings(hidden=16, layers=3), graph) > least_bytes(settings(hidden=16), graph)
    assert least_bytes(settings(layers=1, hidden=10**9), graph) == 0


def test_it_is_less_than_what_is_used(graph: Graph) -> None:
    """A bound that were too high would refuse runs that fit."""
    for model in ("gcn", "gat", "ggnn", "gated-gcn", "residual-gcn"):
        config = settings(model=model, hidden=64, layers=4)
        built = build_model(config.model, graph)
        held = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held += tensor.numel() * tensor.element_size()
            return tensor

        prepared = built.prepare(graph)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            built(prepared.hops(built.num_hops), prepared.features)
        weights = sum(p.numel() * p.element_size() for p in built.parameters())
        assert least_bytes(config, graph) <= held + 2 * weights + 4 * graph.num_edges * 64, model


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_features_that_a_model_makes_dense_count(graph: Graph) -> None:
    sparse = replace(graph, features=torch.eye(1000, 400).to_sparse_csr())
    for model in MODELS:
        told = {"model": model, "hidden": 16}
        built = build_model(ModelConfig(**told), sparse)
        prepared = built.prepare(sparse).features
        assert prepared is not None
        is_dense = prepared.layout == torch.strided
        counted = least_bytes(settings(**told), sparse) - least_bytes(settings(**told, encoder="linear"), sparse)
        assert counted == (4 * 1000 * 400 if is_dense else 0), model
    naive = settings(hidden=16, engine="naive"), settings(hidden=16, engine="naive", encoder="linear")
    assert least_bytes(naive[0], sparse) - least_bytes(naive[1], sparse) == 4 * 1000 * 400


def test_refusal(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=2**30, available_bytes=2**20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)
    check_memory(settings(hidden=16), graph)
    check_memory(settings(hidden=100), graph)
    with pytest.raises(InputError, match=r"does not fit memory: at least 2\.\d MiB are needed, 1\.0 MiB are free"):
        check_memory(settings(hidden=100, engine="naive"), graph)
    with pytest.raises(InputError, match=r"does not fit memory: at least 3\.\d MiB are needed, 1\.0 MiB are free"):
        check_memory(settings(hidden=1000, engine="lean"), graph)
    check_memory(settings(hidden=1000), graph)


def test_where_memory_is_unknown_nothing_is_refused(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=None, available_bytes=None, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)
    check_memory(settings(hidden=10**9), graph)


def test_the_output_of_a_streamed_run_lies_in_files(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=2**30, available_bytes=2**20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)
    wide = replace(graph, num_classes=1000)
    with pytest.raises(InputError, match=r"the output for 1000 classes on 1000 vertices.*--memory streams the run"):
        check_memory(settings(hidden=16), wide)
    with pytest.raises(InputError, match=r"from 0 without gaps\.$"):
        check_memory(settings(hidden=16, engine="lean"), wide)
    streamed = settings(hidden=16, memory="1MiB")
    check_memory(streamed, wide)
    # Its last weights do not.
    with pytest.raises(InputError, match=r"the output for 100000 classes.*0 without gaps\.$"):
        check_memory(streamed, replace(graph, num_classes=100_000))


def test_decisions_of_several_labels_are_held_a_split_at_a_time(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Memory(total_bytes=2**30, available_bytes=2**20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)
    several = replace(graph, labels=torch.zeros(1000, 1000, dtype=torch.uint8), num_classes=1000)
    streamed = settings(hidden=16, memory="1MiB")
    check_memory(streamed, replace(several, splits={"train": torch.arange(1000) < 50}))
    with pytest.raises(InputError, match="the output for 1000 classes on 1000 vertices"):
        check_memory(streamed, replace(several, splits={"train": torch.arange(1000) < 100}))
