"""The tables of HyScale-GNN: figures of the paper, simulated on its machine, and the mini-batches that they expect."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
import torch

from bench.hyscale import __main__ as hyscale
from bench.hyscale.__main__ import CASES, FIGURE_11
from bench.hyscale.batches import DegreeLaw, expected_counts, log_normal_law
from bench.papers import machines
from sagann.graph import Topology
from sagann.machines import published_machine
from sagann.sampling import NeighborSampler
from tests.bench.tables import rows_of

U250 = published_machine(hyscale.MACHINE)


def test_epochs_are_counted_as_the_table_says() -> None:
    section = "\n".join(hyscale.epochs(U250))
    for row, case in zip(rows_of(section, hyscale.EPOCH_COLUMNS), CASES, strict=True):
        simulated, error = float(row["simulated s"]), float(row["error"].rstrip("%")) / 100
        assert simulated / case.paper_s - 1 == pytest.approx(error, abs=0.02)
    errors = [abs(hyscale.error_of(hyscale.epoch_of(U250, case), case)) for case in CASES]
    # What the pages say.
    assert [sum(each <= limit for each in errors) for limit in (0.25, 0.4)] == [8, 9]
    assert "- 8 of 10 within 25%, 9 within 40%" in section


def test_management_and_a_second_stage_shorten_an_epoch() -> None:
    seconds = hyscale.steps_of(U250, FIGURE_11[0])
    assert seconds["hybrid"] > seconds["management"] > seconds["two stages"]


NUM_VERTICES = 20_000


def graph(symmetric: bool) -> Topology:
    """Log-normal degrees; edges join ends that are drawn in proportion to them."""
    generator = np.random.default_rng(0)
    weights = generator.lognormal(0.0, 1.2, NUM_VERTICES)
    others = weights if symmetric else generator.permutation(weights)
    num_edges = 8 * NUM_VERTICES
    src = generator.choice(NUM_VERTICES, num_edges, p=weights / weights.sum())
    dst = generator.choice(NUM_VERTICES, num_edges, p=others / others.sum())
    if symmetric:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    return Topology.from_coo(src=torch.from_numpy(src), dst=torch.from_numpy(dst), num_src=NUM_VERTICES)


@pytest.mark.parametrize(
    ("fanouts", "num_seeds", "symmetric"),
    [((25, 10), 64, False), ((25, 10), 512, True), ((5, 5, 5), 256, False), ((-1,), 100, True)],
)
def test_counts_are_those_of_sampled_batches(fanouts: tuple[int, ...], num_seeds: int, symmetric: bool) -> None:
    topology = graph(symmetric)
    ins = torch.diff(topology.indptr)
    outs = torch.bincount(topology.indices.long(), minlength=NUM_VERTICES)
    degrees, of_class = torch.unique(torch.stack([ins, outs]), dim=1, return_counts=True)
    law = DegreeLaw(NUM_VERTICES, of_class.numpy() / NUM_VERTICES, *degrees.numpy().astype(float))
    counts = expected_counts(law, fanouts, num_seeds)
    sampler = NeighborSampler(topology, fanouts, seed=0)
    generator = torch.Generator().manual_seed(0)
    batches = [
        sampler.sample(torch.randperm(NUM_VERTICES, generator=generator)[:num_seeds], batch=number)
        for number in range(24)
    ]
    # Blocks are in the order in which a model walks them: the last hop first, as layers count.
    for layer in range(len(fanouts)):
        blocks = [each.blocks[layer] for each in batches]
        assert counts.edges[layer] == pytest.approx(fmean(each.num_edges for each in blocks), rel=0.05)
        assert counts.vertices[layer] == pytest.approx(fmean(each.num_src for each in blocks), rel=0.05)
    assert counts.vertices[-1] == num_seeds
    assert counts.num_edges == sum(counts.edges)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("mean", "top_share"), [(50.0, 0.05), (2.0, 0.8)])
def test_a_law_has_its_mean_and_its_top(mean: float, top_share: float, symmetric: bool) -> None:
    law = log_normal_law(num_vertices=1000, mean=mean, top_share=top_share, symmetric=symmetric)
    assert law.share.sum() == pytest.approx(1)
    assert law.mean_out_degree == pytest.approx(mean)
    assert law.share @ law.in_degree == pytest.approx(mean)
    assert np.array_equal(law.in_degree, law.out_degree) is symmetric
    # The hundredth of the vertices with the most out-edges, the last class of them in part.
    left, edges = 0.01, 0.0
    for at in np.argsort(-law.out_degree):
        taken = min(left, law.share[at])
        edges += taken * law.out_degree[at]
        left -= taken
    assert edges / mean == pytest.approx(top_share, rel=0.04)


def test_machines_share_the_work_until_messages_between_them_take_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert machines.main(["--batch-sizes", "8192"]) == 0
    batches, whole = capsys.readouterr().out.split("The whole graph", 1)
    assert "It stops to scale at 16 machines: messages." in batches
    assert "It scales to 1,024 machines." in whole
    alone, two = (
        [float(cell) for cell in line.split("|")[4:9]]
        for line in batches.splitlines()
        if line[:4] in ("| 1 ", "| 2 ")
    )
    # One machine exchanges nothing; half of a batch has half of the work, and a little more.
    assert alone[3:] == [0, 0]
    assert all(0.5 <= half / one < 0.55 for half, one in zip(two[:3], alone[:3], strict=True))
