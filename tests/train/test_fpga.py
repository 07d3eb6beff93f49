"""Simulated hardware kernels: their losses and gradients are those of PyTorch, their seconds those of the clock and the link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, MissingDependencyError
from sagann.graph import Graph
from sagann.hardware import KernelDesign, Training
from sagann.hardware.draw import training_cycles
from sagann.machines import published_machine
from sagann.nn import GCN, GNN, SAGE, ModelConfig, build_model
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.train import fpga
from sagann.train.fpga import SimulatedKernels
from sagann.train.predictor import Predictor
from tests.forks import run_fresh
from tests.train.runs import community_graph, predictor_of, trainer_of, written_lines

LINK = published_machine("epyc-7763-u250").links["accelerator0.copy_in"].bytes_per_s


def case(name: str, graph: Graph | None = None, *, num_seeds: int = 9) -> tuple[Predictor, MiniBatch]:
    """A model, and a mini-batch for it."""
    graph = community_graph() if graph is None else graph
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(ModelConfig(model=name, hidden=6, dropout=0.0), graph)
    predictor = predictor_of(model, graph)
    batches = MiniBatches(predictor.prepare(graph).graph, fanouts=(3, 2), batch_size=num_seeds)
    return predictor, next(iter(batches))


def kernels_of(predictor: Predictor, batch: MiniBatch, answers: str = "kernel") -> SimulatedKernels:
    return SimulatedKernels.of(answers, predictor.model, batch, None)


def loss_and_gradients(loss: Tensor, model: nn.Module) -> tuple[float, list[Tensor]]:
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("name", ["gcn", "sage"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in sub-batches"])
@pytest.mark.parametrize("multi_label", [False, True], ids=["classes", "multi-label"])
def test_the_kernels_arithmetic_gives_the_loss_and_its_gradient(name: str, is_cut: bool, multi_label: bool) -> None:
    predictor, batch = case(name, community_graph(multi_label=multi_label))
    kernels = kernels_of(predictor, batch)
    if is_cut:
        training = kernels.training
        small = replace(training.design, bank_chunks=4 * (2 + training.own), row_entries=32)
        kernels = replace(kernels, training=Training(design=small, widths=training.widths, own=training.own))
    assert (len(kernels.training.sub_batches(kernels.hops(batch))) > 1) is is_cut
    found, gradients = loss_and_gradients(kernels.loss_of(predictor)(batch), predictor.model)
    expected, expected_gradients = loss_and_gradients(predictor.loss_of_batch(batch), predictor.model)
    assert found == pytest.approx(expected, rel=1e-5)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_circuits_give_the_bits_of_the_arithmetic() -> None:
    pytest.importorskip("amaranth", reason="needs the extra 'hardware'")
    predictor, batch = case("sage", num_seeds=2)
    kernels = kernels_of(predictor, batch, "rtl")
    found, expected = (
        loss_and_gradients(replace(kernels, answers=answers).loss_of(predictor)(batch), predictor.model)
        for answers in ("rtl", "kernel")
    )
    assert found[0] == expected[0]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[1], expected[1], strict=True))


def test_seconds_are_cycles_and_copies_of_parameters_and_scores() -> None:
    predictor, batch = case("sage")
    kernels = kernels_of(predictor, batch, "torch")
    assert kernels.loss_of(predictor) == predictor.loss_of_batch
    parameters = sum(each.numel() for each in predictor.model.parameters())
    # To the kernels or from them, and of their gradients the other way.
    copied_bytes = 2 * 4 * (parameters + 9 * 3)
    cycles = training_cycles(kernels.training, kernels.hops(batch))
    assert kernels.seconds(batch) == pytest.approx(cycles / 3e8 + copied_bytes / LINK)
    slower = SimulatedKernels.of("torch", predictor.model, batch, 1e6)
    assert slower.seconds(batch) == pytest.approx(cycles / 3e8 + copied_bytes / 1e6)


def _model(**options: Any) -> nn.Module:
    return GNN([GCN(8, 6), GCN(6, 3)], **options)


class _Wider(GCN):
    """Another layer than GCN."""


WRONG = {
    "Linear is no stack of GCN or of SAGE": nn.Linear(8, 3),
    "GNN is no stack of GCN or of SAGE": GNN([GCN(8, 6), SAGE(6, 3)]),
    "GNN is no stack of GCN or of SAGE ": GNN([_Wider(8, 3)]),
    "it has an encoder, a decoder, a normalisation or several steps": _model(norms=[nn.LayerNorm(6)]),
    "its activation is not ReLU": _model(activation=torch.tanh),
    "its dropout is 0.25": _model(dropout=0.25),
    "its features are no dense float32": _model().double(),
    "its features are no dense float32 ": _model(),
}


@pytest.mark.parametrize("said", WRONG)
def test_models_that_the_kernels_do_not_compute_are_refused(said: str) -> None:
    _, batch = case("gcn")
    if "float32" in said:
        x = batch.features
        assert x is not None
        batch = replace(batch, features=x.to_sparse() if said.endswith(" ") else x.double())
    with pytest.raises(InputError, match=f"hardware kernels do not compute the model: {said.strip()} ") as caught:
        SimulatedKernels.of("torch", WRONG[said], batch, None)
    assert caught.value.hint.startswith("Take gcn or sage with --dropout 0")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"array_weights": 1}, "kernel is too small: weights need"),
        ({"bank_chunks": 1}, "kernel is too small: sums in a bank need"),
    ],
)
def test_a_seed_that_does_not_fit_is_refused(
    sizes: dict[str, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, batch = case("sage", num_seeds=1)
    monkeypatch.setattr(
        "sagann.plan.machine.Machine.kernel", lambda machine, device: replace(KernelDesign(), **sizes)
    )
    with pytest.raises(InputError, match=said):
        kernels_of(predictor, batch)


def test_circuits_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, batch = case("gcn", num_seeds=1)
    monkeypatch.setattr(fpga, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"amaranth cannot be imported.*'sagann\[hardware\]'"):
        kernels_of(predictor, batch, "rtl")


@pytest.mark.parametrize(
    ("sharing", "said"), [("static", r"a share of 5 seeds takes [\d,]+ cycles"), ("joint", "a share of 10 seeds")]
)
def test_circuits_are_refused_by_the_largest_share_before_anything_starts(
    sharing: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fpga, "find_spec", lambda name: object())
    given: dict[str, Any] = {**OPTIONS, "devices": "host:1,accelerator:fpga:rtl", "sharing": sharing}
    model = ModelConfig(model="gcn", hidden=4, dropout=0.0)
    monkeypatch.setattr(fpga, "_MOST_CYCLES", 100)
    with pytest.raises(InputError, match=rf"circuits are simulated for a short time: {said}"):
        trainer_of(model, **given).fit()


OPTIONS: dict[str, Any] = {"sample": (4, 3), "batch_size": 10, "epochs": 4, "weights": "last"}


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("gcn", "accelerator:fpga:kernel"),
        ("sage", "host:1,accelerator:fpga:kernel"),
        ("sage", "host:1,accelerator:fpga"),
    ],
)
def test_a_run_has_the_losses_of_the_processor_and_seconds_of_the_kernels(
    name: str, devices: str, tmp_path: Path
) -> None:
    config = ModelConfig(model=name, hidden=8, dropout=0.0)
    alone = trainer_of(config, **OPTIONS).fit()
    result = trainer_of(config, run_dir=tmp_path, devices=devices, sharing="static", **OPTIONS).fit()
    for ours, theirs in zip(result.history, alone.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.metrics["val"]["loss"] == pytest.approx(theirs.metrics["val"]["loss"], rel=1e-4)
    for line in written_lines(tmp_path):
        assert line["trainer_seeds"][-1] > 0
        # Three shares of a few thousand cycles, and copies of some kilobytes.
        assert 3e-6 < line["trainer_s"][-1] < 3e-4 < line["trainer_simulation_s"][-1]
        assert 0 < line["transfer_s"][-1] < 3e-5
        assert line["trainer_simulation_s"][:-1] == [0.0] * (len(line["trainers"]) - 1)


def test_seeds_go_to_the_faster_hardware_however_long_it_is_simulated() -> None:
    options = {**OPTIONS, "epochs": 8, "sharing": "joint", "devices": "host:1,accelerator:fpga"}
    result = trainer_of(ModelConfig(model="sage", hidden=8, dropout=0.0), **options).fit()
    host, accelerator = result.history[-1].extra["trainer_seeds"]
    assert accelerator > 4 * host


@pytest.mark.slow
def test_other_runs_load_no_hardware() -> None:
    code = (
        "import sys, torch\nfrom tests.train.runs import trainer_of\nfrom sagann.nn import ModelConfig\n"
        "if __name__ == '__main__':\n"
        "    trainer_of(ModelConfig(hidden=4), sample=(3, 3), devices='host:1,accelerator:1', epochs=1).fit()\n"
        "    print([name for name in sys.modules if 'hardware' in name or name == 'amaranth'])"
    )
    assert run_fresh(code).strip().endswith("[]")
