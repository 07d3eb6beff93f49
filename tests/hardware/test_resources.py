"""Resources beside the paper's Table IV, drawn mini-batches, and published machines."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers import hyscale_hardware
from sagann.errors import InputError
from sagann.hardware import KernelDesign
from sagann.hardware.draw import drawn_hops
from sagann.hardware.resources import ALVEO_U250, Resources
from sagann.machines import NAMES, published_machine


def test_the_paper_s_sizes_take_its_dsp_slices() -> None:
    assert hyscale_hardware.vendor_dsp(KernelDesign()) / ALVEO_U250.dsp == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("own", [False, True])
def test_drawn_blocks_have_their_counts(own: bool) -> None:
    first, second = drawn_hops((500, 80, 16), (700, 90), own=own)
    assert (first.num_dst, second.num_dst) == (80, 16)
    for hop, num_src, num_edges in ((first, 500, 700), (second, 80, 90)):
        assert len(hop.sources) == num_edges + (not own) * hop.num_dst
        reached = np.concatenate([hop.sources, np.arange(hop.num_dst)])
        assert np.array_equal(np.unique(reached), np.arange(num_src))


def test_more_scatter_pes_than_eight_gain_nothing() -> None:
    """The paper builds n = 8 and m = 2048."""
    case = next(each for each in hyscale_hardware.CASES if each.hidden == 256 and len(each.fanouts) == 2)
    training, hops = hyscale_hardware.mini_batch(case)
    times = dict(hyscale_hardware.sweep(training, hops))
    assert times[1, 2048, 128] > 3 * times[8, 2048, 128]
    assert times[16, 2048, 128] > 0.95 * times[8, 2048, 128]
    assert times[8, 512, 128] > 2 * times[8, 2048, 128]


def test_the_page_has_the_paper_s_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, size in (("PES", 8), ("COLUMNS", 128), ("WINDOWS", 128)):
        monkeypatch.setattr(hyscale_hardware, name, (size,))
    monkeypatch.setattr(hyscale_hardware, "CASES", hyscale_hardware.CASES[:1])
    # To synthesise the paper's sizes takes minutes.
    monkeypatch.setattr(
        hyscale_hardware, "area_of", lambda design: {"Mul": (2176, Resources(dsp=2, uram=0, bram=0))}
    )
    assert hyscale_hardware.main([]) == 0
    page = capsys.readouterr().out
    assert "| DSP | 90% | 91% | 0% | 35% | 4,352 |" in page
    assert "| 8 | 2,048 | 128 | 91% |" in page


def test_published_machines_are_read_and_one_has_the_kernels_of_table_4() -> None:
    for name in NAMES:
        machine = published_machine(name)
        assert machine.links
        assert all((machine.kernel(each) is not None) is (name == "epyc-7763-u250") for each in machine.devices)
    first, *others = (published_machine("epyc-7763-u250").kernel(f"accelerator{number}") for number in range(4))
    assert first is not None
    assert others == [first] * 3
    assert (first.scatter_pes, first.lanes * first.array_columns, first.frequency_hz) == (8, 2048, 3e8)
    assert hyscale_hardware.vendor_dsp(first) <= ALVEO_U250.dsp
    with pytest.raises(InputError, match=r"no published machine of that name: 'u250' .*Name one of"):
        published_machine("u250")
