"""Constants that stay in memory from epoch to epoch are loaded once, and change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from sagann.graph import declare_constant
from sagann.plan import equal_vertices
from sagann.plan.epoch import MemoryPolicy
from sagann.plan.spec import verify
from sagann.plan.steps import Plan
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.streamed import StreamedModel
from tests.runtime.streams import assert_all_close, partial_loss, zoo_model

MODELS = ("gcn", "gat", "ggnn")
BOUNDS = equal_vertices(53, 5)


def streams(name: str, folder: Path, policy: MemoryPolicy = "belady") -> tuple[StreamedModel, Tensor]:
    """A model whose budget is a part of what an epoch takes."""
    torch.manual_seed(0)
    model, hops, x = zoo_model(name)
    declare_constant(x)
    options = {"dialect": "naive", "spill": folder}
    whole = StreamedModel(model, hops, BOUNDS, **options).plan(x, folded=True).plan
    return StreamedModel(
        model, hops, BOUNDS, budget_bytes=whole.peak_bytes * 3 // 4, memory_policy=policy, **options
    ), x


def epochs(streamed: StreamedModel, x: Tensor, count: int = 3) -> tuple[list[Tensor], list[int]]:
    """Losses and gradients, each followed by the result of an evaluation; and bytes that each epoch has loaded."""
    found, loaded = [], []
    for _ in range(count):
        streamed.timeline = recorder = Recorder()
        loss = streamed.loss(x, partial_loss)
        found += [loss.detach(), *torch.autograd.grad(loss, list(streamed.model.parameters()))]
        loaded.append(sum(span.num_bytes for span in recorder.of("load")))
        streamed.timeline = None
        with torch.no_grad():
            found.append(streamed(x).clone())
            for parameter in streamed.model.parameters():
                parameter *= 1.01
    return found, loaded


def without(plan: Plan, *_: object, **__: object) -> Plan:
    return plan


@pytest.mark.parametrize("policy", get_args(MemoryPolicy))
@pytest.mark.parametrize("name", MODELS)
def test_epochs_load_less_and_have_the_same_bits(
    name: str, policy: MemoryPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed, x = streams(name, tmp_path, policy)
    plan = streamed.plan(x, folded=True).plan
    verify(plan)
    found, loaded = epochs(streamed, x)
    staying = sum(load.num_bytes for load in plan.staying)
    assert staying
    # Loading them comes first, once what is gathered once is there; they stay through evaluations.
    assert loaded[0] >= plan.loaded_bytes + staying
    assert loaded[1:] == [plan.loaded_bytes] * 2
    monkeypatch.setattr("sagann.plan.epoch.with_staying", without)
    again, x = streams(name, tmp_path, policy)
    expected, all_loaded = epochs(again, x)
    assert all(map(torch.equal, found, expected))
    assert all_loaded[1] > loaded[1]
    assert again.plan(x, folded=True).plan.loaded_bytes == all_loaded[1]


def test_evaluations_keep_what_epochs_read(tmp_path: Path) -> None:
    streamed, x = streams("ggnn", tmp_path)
    with torch.no_grad():
        assert not streamed.plan(x).plan.staying
        streamed(x)
    plan = streamed.plan(x, folded=True).plan
    with torch.no_grad():
        evaluation = streamed.plan(x).plan
    assert plan.staying
    assert evaluation.staying == plan.staying
    verify(evaluation)
    assert evaluation.peak_bytes <= evaluation.budget_bytes


def test_other_features_are_loaded_anew(tmp_path: Path) -> None:
    streamed, x = streams("gat", tmp_path)
    other = declare_constant(x * 2)
    epochs(streamed, x, 1)
    with torch.no_grad():
        for features in (other, x, other):
            assert torch.equal(
                streamed(features), StreamedModel(streamed.model, streamed.hops, BOUNDS, dialect="naive")(features)
            )
        # In place, as a caller may.
        x *= 3
        assert torch.equal(streamed(x), StreamedModel(streamed.model, streamed.hops, BOUNDS, dialect="naive")(x))


def test_a_closed_model_keeps_nothing_and_begins_anew(tmp_path: Path) -> None:
    streamed, x = streams("gcn", tmp_path)
    _, first = epochs(streamed, x, 1)
    streamed.close()
    with torch.no_grad():
        for parameter in streamed.model.parameters():
            parameter /= 1.01
    _, again = epochs(streamed, x, 1)
    assert again == first


def test_what_an_evaluation_in_inference_mode_loads_serves_epochs(tmp_path: Path) -> None:
    streamed, x = streams("gcn", tmp_path)
    other = declare_constant(x * 2)
    epochs(streamed, x, 1)
    with torch.inference_mode():
        streamed(other)
    found, _ = epochs(streamed, other, 1)
    with torch.no_grad():
        for parameter in streamed.model.parameters():
            parameter /= 1.01
    expected, _ = epochs(StreamedModel(streamed.model, streamed.hops, BOUNDS, dialect="naive"), other, 1)
    assert_all_close(found, expected)


class Doubles:
    """A store without room for weak references."""

    __slots__ = ("_x", "dtype", "num_rows", "row_shape")

    def __init__(self, x: Tensor) -> None:
        self._x, self.num_rows, self.row_shape, self.dtype = x, len(x), tuple(x.shape[1:]), x.dtype

    def rows(self, ids: Tensor) -> Tensor:
        return self._x[ids] * 2

    def slice(self, start: int, stop: int) -> Tensor:
        return self._x[start:stop] * 2


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_any_store_stay(name: str, tmp_path: Path) -> None:
    streamed, x = streams(name, tmp_path)
    store = Doubles(x)
    assert streamed.plan(store, folded=True).plan.staying
    with torch.no_grad():
        expected = streamed(declare_constant(x * 2)).clone()
        assert torch.equal(streamed(store), expected)
