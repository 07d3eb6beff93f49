from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagann.cli.fit_memory import check_memory, refuse_beyond_memory
from sagann.cli.run_settings import RunSettings, merge, settings_of
from sagann.errors import InputError
from sagann.free_space import Memory
from sagann.graph import Graph, rmat_graph


def settings(**given: Any) -> RunSettings:
    return settings_of(merge({}, {"data": "demo", "device": "cpu", **given}))


@pytest.fixture
def graph() -> Graph:
    return rmat_graph(1000, 5000, num_features=10, num_classes=3, seed=0)


@pytest.fixture
def mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1 MiB of free memory."""
    found = Memory(total_bytes=2**30, available_bytes=2**20, limit_bytes=None, limit_used_bytes=None)
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)


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
    monkeypatch.setattr("sagann.cli.fit_memory.memory", lambda: found)
    refuse_beyond_memory(2**70, where="everything", fix="")
