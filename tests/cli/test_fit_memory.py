from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sagann.cli.fit_memory import check_memory, least_bytes
from sagann.cli.run_settings import merge, settings_of
from sagann.config import RunConfig
from sagann.errors import InputError
from sagann.free_space import Memory, require_memory
from sagann.graph import Graph, rmat_graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import Engine, NaiveEngine, using_engine
from tests.zoo import DISTINCT


def settings(**given: Any) -> RunConfig:
    return settings_of(merge({}, {"data": "demo", "device": "cpu", **given}))


@pytest.fixture
def graph() -> Graph:
    return rmat_graph(1000, 5000, num_features=10, num_classes=3, seed=0)


@pytest.fixture
def mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MiB of free memory."""
    found = Memory(total_bytes=2**30, available_bytes=2**20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.free_space.memory", lambda: found)


@pytest.mark.usefixtures("mebibyte")
def test_a_run_that_cannot_fit_is_refused(graph: Graph) -> None:
    check_memory(settings(hidden=100), graph)
    check_memory(settings(hidden=1000), graph)
    with pytest.raises(InputError, match=r"does not fit memory: at least 2\.\d MiB are needed, 1\.0 MiB are free"):
        check_memory(settings(hidden=100, engine="naive"), graph)
    with pytest.raises(InputError, match=r"at least 3\.\d MiB are needed, .*Else use --engine compiled, a smaller"):
        check_memory(settings(hidden=1000, engine="lean"), graph)


@pytest.mark.usefixtures("mebibyte")
def test_the_output_of_a_streamed_run_lies_in_files(graph: Graph) -> None:
    wide = replace(graph, num_classes=1000)
    with pytest.raises(InputError, match=r"for 1000 classes on 1000 vertices.*--memory, which streams the run"):
        check_memory(settings(hidden=16), wide)
    check_memory(settings(hidden=16, memory="1MiB"), wide)
    # The weights of the output do not.
    with pytest.raises(
        InputError, match=r"for 100000 classes.*number them from 0 without gaps\. Else use a smaller"
    ):
        check_memory(settings(hidden=16, memory="1MiB"), replace(graph, num_classes=100_000))


def test_where_memory_is_unknown_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Memory(total_bytes=None, available_bytes=None, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.free_space.memory", lambda: found)
    require_memory(2**70, where="everything", hint="")


LOGITS = 4 * 1000 * 3


def least(graph: Graph, engine: Engine | None = None, *, is_streamed: bool = False, **fields: Any) -> int:
    with using_engine(engine or CompiledEngine()):
        return least_bytes(ModelConfig(**fields), graph, is_streamed=is_streamed)


def test_weights_outputs_and_rows_are_counted(graph: Graph) -> None:
    weights = 4 * (10 * 16 + 16 + 16 * 3 + 3)
    rows = 4 * 1000 * 16
    assert least(graph, hidden=16) == weights + LOGITS
    assert least(graph, CompiledEngine(lean=True), hidden=16) == weights + LOGITS + rows
    assert least(graph, NaiveEngine(), hidden=16) == weights + LOGITS + rows + 4 * 5000 * 16
    assert least(graph, hidden=16, is_streamed=True) == 2 * weights
    assert least(replace(graph, features=None), hidden=16) > rows
    assert least(graph, NaiveEngine(), hidden=16, layers=3) > least(graph, NaiveEngine(), hidden=16)
    assert least(graph, layers=1, hidden=10**9) < 2 * LOGITS


def test_nothing_is_allocated(graph: Graph) -> None:
    assert least(graph, hidden=2 * 10**9) > 10**11


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_the_model_that_tells_what_becomes_dense_is_narrow(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single wrong label makes billions of classes, each of which would have weights."""
    allocated = []

    def watched(config: ModelConfig, graph: Graph) -> nn.Module:
        model = build_model(config, graph)
        allocated.append(sum(each.numel() for each in model.parameters() if not each.is_meta))
        return model

    monkeypatch.setattr("sagann.cli.fit_memory.build_model", watched)
    sparse = replace(graph, features=torch.eye(1000, 10).to_sparse_csr(), num_classes=100_000)
    assert least(sparse, hidden=4) > 4 * 4 * 100_000
    assert len(allocated) == 2
    assert max(allocated) < 100


def test_of_a_users_model_the_output_is_known(graph: Graph) -> None:
    assert least(graph, model="mine.py:Net", hidden=10**9) == LOGITS


@pytest.mark.parametrize("name", ["gcn", "gat", "ggnn", "gated-gcn", "residual-gcn"])
def test_the_bound_is_less_than_what_is_used(graph: Graph, name: str) -> None:
    """A bound that were too high would refuse runs that fit."""
    model = build_model(ModelConfig(model=name, hidden=64, layers=4), graph)
    held = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal held
        held += tensor.nbytes
        return tensor

    prepared = model.prepare(graph)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        out = model(prepared.hops(model.num_hops), prepared.features)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    used = 2 * weights + held + out.nbytes
    assert least(graph, model=name, hidden=64, layers=4) < used
    assert least(graph, CompiledEngine(lean=True), model=name, hidden=64, layers=4) < used


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("name", DISTINCT)
def test_sparse_features_that_a_model_makes_dense_count(graph: Graph, name: str) -> None:
    sparse = replace(graph, features=torch.eye(1000, 400).to_sparse_csr())
    dense_bytes = 4 * 1000 * 400
    fields = {"model": name, "hidden": 16}
    prepared = build_model(ModelConfig(**fields), sparse).prepare(sparse).features
    assert prepared is not None
    makes_dense = prepared.layout == torch.strided
    assert (least(sparse, **fields) > dense_bytes) == makes_dense
    assert least(sparse, **fields, encoder="linear") < dense_bytes
    assert (least(sparse, NaiveEngine(), **fields) > dense_bytes) == (name not in ("ggnn", "appnp"))


def test_a_streamed_run_holds_decisions_of_several_labels_a_split_at_a_time(graph: Graph) -> None:
    several = replace(graph, labels=torch.zeros(1000, 3, dtype=torch.uint8), splits={})
    half = replace(several, splits={"train": torch.arange(1000) < 500})
    found = [least(each, model="mine.py:Net", is_streamed=True) for each in (graph, several, half)]
    assert found == [0, 4 * 1000 * 3, 4 * 500 * 3]
