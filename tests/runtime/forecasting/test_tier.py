"""Files are taken to be in the page cache only where memory is known to have room for them."""

from __future__ import annotations

import pytest

from sagann.free_space import Memory
from sagann.report.plan_text import forecast_text
from sagann.runtime.forecasting.forecast import forecast
from sagann.runtime.forecasting.tier import tier_of
from sagann.runtime.streaming.stream import foretell
from tests.plan.machines import ROUND
from tests.runtime.forecasting.models import model_and_graph


def test_files_are_taken_to_be_cached_where_memory_has_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = model_and_graph()
    planned = foretell(model, graph, budget_bytes=600_000, on_disk=True)
    assert graph.features is not None
    schedule, plan = planned.schedule, planned.plan
    files = schedule.edge_bytes + schedule.constant_bytes + plan.spilled_bytes + graph.features.nbytes
    for room, expected in ((600_000 + files, "file cache"), (600_000 + files - 1, "disk"), (None, "disk")):
        found = Memory(total_bytes=room, available_bytes=room, limit_bytes=None, limit_used_bytes=None)
        monkeypatch.setattr("sagann.runtime.forecasting.tier.memory", lambda found=found: found)
        told = forecast(planned, ROUND, on_disk=True, rehearsal=(model, graph))
        assert told.tier == expected == tier_of(planned, ROUND, on_disk=True, is_at_hand=True)
        assert ("Memory is taken to hold all files" in forecast_text(told)) == (expected == "file cache")
        # Of a machine that is not at hand, memory is not known.
        assert forecast(planned, ROUND, on_disk=True).tier == "disk"
        assert forecast(planned, ROUND, on_disk=False, rehearsal=(model, graph)).tier == "memory"
