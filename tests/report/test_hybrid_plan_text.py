"""The text of a hybrid plan names who does what, and says alike trainers once."""

from __future__ import annotations

import re
from dataclasses import replace

from sagann.hybrid.forecast import predict
from sagann.report.hybrid_plan_text import hybrid_plan_text
from tests.hybrid.settings import assignment, job, machine


def test_alike_accelerators_are_named_together() -> None:
    described = machine(devices=dict.fromkeys(("accelerator0", "accelerator1"), machine().devices["accelerator0"]))
    found = predict(job(described), assignment(50, 75, 75))
    text = hybrid_plan_text(found, machine="round figures", more=None)
    assert text.splitlines()[:3] == [
        "Machine: round figures.",
        "Seeds of an iteration: 50 on the processor, 75 on accelerator0, 75 on accelerator1; 200 in all, 50 iterations an epoch.",
        "Threads of the processor: 2 sample, 2 load, 4 train.",
    ]
    once = hybrid_plan_text(replace(found, num_iterations=1), machine="round figures", more=None)
    assert "200 in all, 1 iteration an epoch." in once
    # 75 x 12,100 bytes at 1e8 bytes per second.
    assert re.search(r"copies 9\.0[78] ms on accelerator0 and accelerator1", text)
    assert text.endswith(f"The bottleneck is {found.times.bottleneck}.")


def test_what_one_more_brings() -> None:
    few, many = (predict(job(), split) for split in (assignment(0, 200), assignment(0, 100, 100)))
    text = hybrid_plan_text(few, machine="round figures", more=many)
    assert "Seeds of an iteration: 200 on accelerator0; 200 in all" in text
    assert "0 train." in text
    assert "2.00 times as fast" in text.splitlines()[-1] or "1.9" in text.splitlines()[-1]
