"""A plan in words says what it does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from sagann.nn import ModelConfig, build_model
from sagann.plan.epoch import Planned
from sagann.plan.steps import Move
from sagann.report.plan_text import plan_text
from sagann.runtime.streaming.stream import foretell
from tests.graphs import labelled_graph


def planned(budget_bytes: int) -> Planned:
    graph = labelled_graph(200, 900)
    model = build_model(ModelConfig(model="gcn", hidden=16), graph)
    return foretell(model, model.prepare(graph), budget_bytes=budget_bytes, on_disk=True)


def first_line(found: Planned) -> str:
    return plan_text(found).splitlines()[0]


def test_everything_fits_only_where_nothing_has_to_go() -> None:
    found = planned(1 << 30)
    assert first_line(found) == "P = 1: everything fits; nothing is cut."
    load = next(each for each in found.plan.operations if isinstance(each, Move) and each.kind == "load")
    for more in (load, load._replace(kind="store")):
        plan = replace(found.plan, operations=(*found.plan.operations, more))
        assert first_line(found._replace(plan=plan)).startswith(
            "P = 1: nothing is cut, but not everything fits at once; what has to go is loaded again"
        )


def test_intervals_are_said_by_their_sizes() -> None:
    found = planned(20_000)
    assert found.plan.num_intervals > 1
    assert first_line(found).startswith(f"P = {found.plan.num_intervals}: intervals of ")


def test_what_is_read_in_place_is_told_apart_from_what_is_copied() -> None:
    graph = labelled_graph(200, 900)
    model = build_model(ModelConfig(model="gcn", hidden=16), graph)
    foretold = partial(foretell, model, model.prepare(graph), budget_bytes=8000, select="never")
    texts = {on_disk: plan_text(foretold(on_disk=on_disk), on_disk=on_disk) for on_disk in (False, True)}
    assert "Read where it lies" not in texts[True]
    (line,) = [line for line in texts[False].splitlines() if line.startswith("Read where it lies: ")]
    assert "vertex data" in line
    (loaded,) = [line for line in texts[False].splitlines() if line.startswith("Loaded: ")]
    assert re.search(r"\bedges \d", line)
    assert not re.search(r"\bedges \d", loaded)
