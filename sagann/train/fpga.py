"""Simulated hardware kernels as a trainer, ``accelerator:fpga``: whose numbers it answers with, and the seconds that the kernels would take.

The kernels are those of a published machine; circuits are those of smaller ones. The process of the accelerator computes the loss of their
scores, and its gradient, as the host would. Scores of all sub-batches are asked for before the gradient of the first one, so their forward is
carried out again then: that costs time of the simulation, and no cycles.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-C and VI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sagann.errors import InputError, MissingDependencyError
from sagann.hardware import Hop, Pass, Training
from sagann.hardware.draw import training_cycles
from sagann.hardware.values import run_values
from sagann.hybrid.devices import RTL, TORCH, Devices
from sagann.hybrid.forecast import accelerator_names
from sagann.hybrid.trainer import LossOf
from sagann.machines import published_machine
from sagann.nn import GCN, GNN, SAGE
from sagann.nn.model_call import class_of
from sagann.runtime.loading import MiniBatch, MiniBatches
from sagann.train.predictor import Predictor
from sagann.train.tiers import TRIED_BATCHES

MACHINE, DEVICE = "epyc-7763-u250", "accelerator0"
"The published machine, and its device, whose kernels and link are simulated."
_SMALL = {"scatter_pes": 2, "lanes": 4, "array_columns": 4, "window_rows": 8}
"Sizes of the kernels whose circuits are simulated."
_MOST_CYCLES = 50_000
"Most cycles of a share whose circuits are simulated, which takes minutes; a later share may have a little more."
_WHERE = "TrainConfig.devices"
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedKernels:
    """Hardware kernels that train a model on mini-batches, with a link to the host."""

    answers: str
    "Whose numbers they answer with: 'torch', 'kernel' or 'rtl'."
    training: Training
    bytes_per_s: float
    "Of the link, in each direction."

    @classmethod
    def of(cls, answers: str, model: nn.Module, batch: MiniBatch, link_rate: float | None) -> SimulatedKernels:
        """Kernels for a model, tried with a mini-batch of one seed.

        Raises:
            InputError: they do not compute the model, or the seed does not fit them.
            MissingDependencyError: circuits are asked for, and the extra 'hardware' is missing.
        """
        if answers == RTL and find_spec("amaranth") is None:
            raise MissingDependencyError("amaranth", extra="hardware", feature=f"accelerator:fpga:{RTL}")
        maps = _maps(model, batch.features)
        machine = published_machine(MACHINE)
        design = machine.kernel(DEVICE)
        assert design is not None
        widths = (maps[0][0].in_features, *(each[0].out_features for each in maps))
        found = cls(
            answers=answers,
            training=Training(
                design=replace(design, **_SMALL) if answers == RTL else design, widths=widths, own=len(maps[0]) > 1
            ),
            bytes_per_s=link_rate or machine.links[f"{DEVICE}.copy_in"].bytes_per_s,
        )
        found.seconds(batch)
        return found

    def seconds(self, batch: MiniBatch) -> float:
        """Seconds of forward and backward: cycles, and copies of parameters and scores to one side, and of their gradients to the other one."""
        training = self.training
        cycles = training_cycles(training, self.hops(batch))
        pairs = zip(training.widths, training.widths[1:], strict=False)
        parameters = sum((width * (1 + training.own) + 1) * after for width, after in pairs)
        copied_bytes = 2 * 4 * (parameters + len(batch.seeds) * training.widths[-1])
        return cycles / training.design.frequency_hz + copied_bytes / self.bytes_per_s

    def loss_of(self, predictor: Predictor) -> LossOf:
        """The mean loss of a mini-batch's seeds, with its gradient, as the kernels answer."""
        return predictor.loss_of_batch if self.answers == TORCH else partial(self._loss, predictor)

    def _loss(self, predictor: Predictor, batch: MiniBatch) -> Tensor:
        parameters = [
            each
            for maps in _maps(predictor.model, batch.features)
            for each in (*(linear.weight for linear in maps), maps[-1].bias)
        ]
        scores: Tensor = _Scores.apply(self, batch, *parameters)  # type: ignore[no-untyped-call]
        return predictor.head.loss(scores, batch)

    def hops(self, batch: MiniBatch) -> list[Hop]:
        """The blocks of a mini-batch as the kernels read them: a mean of SAGE has coefficients, too."""
        hops = []
        for block in batch.blocks:
            degrees = block.indptr.diff()
            of_mean = (1 / degrees.float()).repeat_interleave(degrees)
            coefficients = of_mean if self.training.own else block.edge_data[GCN.edge_data]
            hops.append(Hop(block.indptr.numpy(), block.indices.long().numpy(), coefficients.numpy()))
        return hops

    def run(self, passes: Sequence[Pass], rows: Mapping[int, Array]) -> list[Array]:
        """The results of passes, by the kernels' arithmetic or circuits."""
        design = self.training.design
        if self.answers != RTL:
            return run_values(passes, rows, design)
        # Imported here: it needs the extra.
        from sagann.hardware.rtl.simulation import run_circuits

        return run_circuits(passes, rows, design)


def simulated_kernels(
    devices: Devices,
    predictor: Predictor,
    minibatches: MiniBatches,
    link_rate: float | None,
    most_seeds: Mapping[str, int],
) -> list[SimulatedKernels | None]:
    """The kernels that each accelerator process simulates, tried with the seed of the most in-edges; None for one that simulates none.

    Circuits are refused whose share of a mini-batch, of at most ``most_seeds``, would be simulated for long: a few of epoch 1 are clocked.
    """
    if predictor.contract.unit == "link":
        raise InputError(
            f"hardware kernels train on vertices: links are learned (in {_WHERE})",
            hint="Take 'accelerator' instead of 'accelerator:fpga'.",
        )
    seeds, indptr, sampler = minibatches.seeds, minibatches.graph.topology.indptr, minibatches.neighbor_sampler
    largest = seeds[(indptr[seeds + 1] - indptr[seeds]).argmax()]
    batch, found = minibatches.load(sampler.sample(largest[None])), list[SimulatedKernels | None]()
    for name, answers in zip(accelerator_names(len(devices.fpga)), devices.fpga, strict=True):
        kernels = None if answers is None else SimulatedKernels.of(answers, predictor.model, batch, link_rate)
        found.append(kernels)
        if kernels is None or answers != RTL or not (count := most_seeds[name]):
            continue
        shares = [ids[:count] for ids in minibatches.items_of(1)[:TRIED_BATCHES]]
        sampled = (sampler.sample(ids, epoch=1, batch=number) for number, ids in enumerate(shares))
        cycles = max(training_cycles(kernels.training, kernels.hops(each)) for each in sampled)
        if cycles > _MOST_CYCLES:
            raise InputError(
                f"circuits are simulated for a short time: a share of {count} seeds takes {cycles:,} cycles, at most {_MOST_CYCLES:,} (in {_WHERE})",
                hint="Lower --batch-size, --sample or --hidden, or have the kernels' arithmetic answer: accelerator:fpga:kernel.",
            )
    return found


def _maps(model: nn.Module, features: Tensor | None) -> list[tuple[nn.Linear, ...]]:
    """The linear maps of each layer, of which the last one has a bias; InputError for a model that the kernels do not compute."""
    wrong = ""
    if type(model) is not GNN or {type(layer) for layer in model.layers} not in ({GCN}, {SAGE}):
        wrong = f"{class_of(model).__name__} is no stack of GCN or of SAGE"
    elif model.encoder is not None or model.decoder is not None or model.norms or model.steps != 1:
        wrong = "it has an encoder, a decoder, a normalisation or several steps"
    elif model.activation not in (torch.relu, F.relu):
        wrong = "its activation is not ReLU"
    elif model.dropout:
        wrong = f"its dropout is {model.dropout:g}"
    elif features is None or features.layout != torch.strided or features.dtype != torch.float32:
        wrong = "its features are no dense float32"
    if wrong:
        raise InputError(
            f"hardware kernels do not compute the model: {wrong} (in {_WHERE})",
            hint="Take gcn or sage with --dropout 0 and without --encoder and --norm, or 'accelerator' instead of 'accelerator:fpga'.",
        )
    assert isinstance(model, GNN)
    return [
        (each.linear,) if isinstance(each, GCN) else (each.own, each.neighbours)
        for each in model.layers
        if isinstance(each, GCN | SAGE)
    ]


class _Scores(torch.autograd.Function):
    """Scores of a mini-batch, of which the kernels give the gradient by the parameters."""

    @staticmethod
    def forward(ctx: Any, kernels: SimulatedKernels, batch: MiniBatch, *parameters: Tensor) -> Tensor:
        training, numbers = kernels.training, [each.detach().numpy() for each in parameters]
        # A layer's matrices, and its bias.
        of_layer = 2 + training.own
        weights = [
            np.concatenate([each.T for each in numbers[at : at + of_layer - 1]])
            for at in range(0, len(numbers), of_layer)
        ]
        assert batch.features is not None
        loads = training.loads(weights, numbers[of_layer - 1 :: of_layer])
        ctx.given = training.sub_batches(kernels.hops(batch)), loads, batch.features.numpy()
        ctx.kernels = kernels
        passes, rows, scores = training.passes(*ctx.given)
        results = kernels.run(passes, rows)
        return torch.from_numpy(training.scores(ctx.given[0], [results[number] for number in scores]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        training = ctx.kernels.training
        passes, rows, _ = training.passes(*ctx.given, grad.numpy())
        results = ctx.kernels.run(passes, rows)[-training.num_layers :]
        gradients: list[Array] = []
        for layer, result in enumerate(results, 1):
            weights, bias = training.gradients(layer, result)
            gradients += [*(each.T for each in np.split(weights, 1 + training.own)), bias]
        return None, None, *(torch.from_numpy(each.copy()) for each in gradients)
