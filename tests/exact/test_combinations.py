"""Every combination of task, source and placement trains as on one device, or is refused, as the table in README.md says."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from tests.exact.combinations import PLACEMENTS, SOURCES, TASKS, table, trained, why_not
from tests.runtime.device.several import simulate_devices
from tests.runtime.workers.processes import run_driver

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.distributed
@pytest.mark.slow
def test_what_the_table_says_trains_and_the_rest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_devices(monkeypatch)
    found = {
        (*each, placement): trained(*each, placement, tmp_path)
        for placement in ("one device", "several devices", "hybrid")
        for each in product(TASKS, SOURCES)
    }
    run_driver("combinations", tmp_path, package="tests.exact")
    found |= torch.load(tmp_path / "workers.pt", weights_only=False)
    assert set(found) == set(product(TASKS, SOURCES, PLACEMENTS))
    for (task, source, placement), outcome in found.items():
        if why_not(task, source, placement):
            assert ", expected " in str(outcome), (task, source, placement)
            continue
        # A budget, devices and workers change no number.
        steps = source.removesuffix(" and `--memory`") if "sample" in source else "all at once"
        expected = found[task, steps, "one device"]
        assert isinstance(expected, float), expected
        assert outcome == pytest.approx(expected, rel=1e-5), (task, source, placement)


def test_readme_has_the_table() -> None:
    assert table() in README.read_text()
