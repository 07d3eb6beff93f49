"""HybridEpochs: the epoch source whose mini-batches are trained by the processor and accelerators together.

Its steps are those of :class:`~sagann.train.batch_epochs.SampledEpochs`: the loss is that of the whole mini-batch, and only its computation
is shared out.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.config import TrainConfig, class_in_file
from sagann.hybrid.assignment import HOST
from sagann.hybrid.cuda_trainer import CudaTrainer
from sagann.hybrid.devices import Devices, on_cores
from sagann.hybrid.forecast import accelerator_names
from sagann.hybrid.manager import Manager
from sagann.hybrid.process_trainer import ProcessTrainer, pickled
from sagann.hybrid.shared_batches import Iteration, SharedBatches
from sagann.hybrid.synchronise import synchronised
from sagann.hybrid.trainer import Found, HostTrainer, LossOf, Trainer
from sagann.kernels.seeds import seeded
from sagann.nn.user_model import load_class
from sagann.runtime.device.streams import Streams
from sagann.runtime.loading import MiniBatches
from sagann.runtime.recorder import Recorder
from sagann.saga.engine import current_engine, set_engine
from sagann.train.batch_epochs import SampledEpochs, require_shareable
from sagann.train.contract import Contract
from sagann.train.epoch_source import TrainStep
from sagann.train.losses import Loss
from sagann.train.predictor import Predictor
from sagann.train.runner import PreparedGraph

if TYPE_CHECKING:
    from sagann.nn import ModelConfig
    from sagann.train.fpga import SimulatedKernels


class HybridEpochs(SampledEpochs):
    """The epoch source of ``TrainConfig.devices``. ``model_config`` names the file of a user's model, which accelerators load.

    A hot tier keeps the rows of the highest score: batches of several trainers are not announced.
    """

    def __init__(
        self,
        predictor: Predictor,
        prepared: PreparedGraph,
        config: TrainConfig,
        *,
        model_config: ModelConfig | None = None,
        say: Callable[[str], None] = lambda text: None,
        minibatches: MiniBatches | None = None,
    ) -> None:
        assert config.devices is not None
        self._config = config
        tiered = replace(config, cache="static") if config.has_tiers else config
        super().__init__(predictor, prepared, tiered, say=say, minibatches=minibatches)
        self._model_file = None if model_config is None else class_in_file(model_config.model)
        self._say = say
        self.devices = Devices.parse(config.devices, where="TrainConfig.devices")
        "Who trains."
        self.manager = _manager(self.devices, self.minibatches, config)
        self.has_shares = False
        "Whether seeds and threads are those of a checkpoint."
        self._own_cores: tuple[int, ...] = ()
        "Cores that this process keeps to while accelerators have others; none for all."
        self._parameters = tuple(predictor.model.parameters())
        self._threads = torch.get_num_threads()
        self.trainers: Mapping[str, Trainer] = {}
        self._kernels = _kernels(self.devices, predictor, self.minibatches, config)

    @property
    def ahead(self) -> int:
        """Most iterations that are prepared ahead with the present threads."""
        return self._batches().ahead

    def _batches(self, trace: Recorder | None = None) -> SharedBatches:
        return SharedBatches(
            self.minibatches, self.manager, self.trainers, ahead=self._config.batches_ahead, trace=trace
        )

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        self.manager.begin()
        self.trace = Recorder() if self._config.profile else None
        batches = self._batches(self.trace)
        try:
            with on_cores(self._own_cores), self._counted(batches.iterations(epoch, first=first)) as iterations:
                for iteration in iterations:
                    yield TrainStep(
                        loss=partial(self._loss, iteration, iterations.go_on),
                        num_labelled=iteration.num_seeds,
                        num_edges=iteration.num_edges,
                        note=self.manager.why,
                    )
                    times = iteration.times(iteration.train_s)
                    self.manager.work.count(iteration.assignment, times, iteration.trained_s, self.manager.why)
                    for name, seconds in iteration.simulation_s.items():
                        self.manager.work.simulation_s[name] += seconds
                    for name, sent in iteration.sent.items():
                        self.trainers[name].release(sent)
        finally:
            # Evaluation has all threads.
            torch.set_num_threads(self._threads)
        self.work = self.manager.work

    def state_dict(self) -> dict[str, Any]:
        return self.manager.state_dict()

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        self.has_shares = self.manager.load_state_dict(found)

    def open(self) -> None:
        assert self.balancer is None, "workers and devices exclude each other"
        if not self.trainers:
            self.trainers = self._started()

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.close()
        self.trainers = {}

    def _loss(self, iteration: Iteration, launched: Callable[[], None]) -> Tensor:
        """The loss of an iteration, which all trainers compute now, perhaps not for the first time; that takes seconds of the iteration."""
        since_s = time.perf_counter()
        found, train_s = self._propagated(iteration, launched)
        loss = synchronised(found, self._parameters, iteration.name)
        for name, each in found.items():
            if each.simulation_s:
                iteration.transfer_s[name] = each.transfer_s
                iteration.simulation_s[name] = iteration.simulation_s.get(name, 0.0) + each.simulation_s
        is_moved = self.manager.learn(iteration.assignment, iteration.times(train_s))
        if self.trace is not None:
            # The processor's seconds begin with the launch of the others.
            for name, seconds in train_s.items():
                self.trace.add(name, iteration.name, since_s, seconds)
            if is_moved:
                self.trace.add("decisions", self.manager.why, time.perf_counter(), 0.0)
        for name, seconds in train_s.items():
            iteration.train_s[name] = iteration.train_s.get(name, 0.0) + seconds
        # Nobody would wait for a simulation.
        iteration.trained_s += max(train_s.values()) if iteration.simulation_s else time.perf_counter() - since_s
        return loss

    def _propagated(
        self, iteration: Iteration, launched: Callable[[], None]
    ) -> tuple[dict[str, Found], dict[str, float]]:
        """What each trainer has found, and its seconds; ``launched`` is called when the others have been launched."""
        since_s = time.perf_counter()
        threads = iteration.assignment.threads.train
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        for name, sent in iteration.sent.items():
            self.trainers[name].launch(sent)
        launch_s = time.perf_counter() - since_s
        launched()
        found = {name: self._finished(name, sent) for name, sent in iteration.sent.items()}
        # The processor begins when it has launched the others.
        return found, {name: each.seconds + launch_s * (name == HOST) for name, each in found.items()}

    def _finished(self, name: str, sent: Any) -> Found:
        """What a trainer has found. The processor draws the random numbers that the others draw, and takes none from the run's generator."""
        if name != HOST:
            return self.trainers[name].finish()
        with seeded(sent.seed, torch.device("cpu")):
            return self.trainers[name].finish()

    def _started(self) -> dict[str, Trainer]:
        """The trainers, that of the processor first."""
        trainers, known = dict[str, Trainer](), self._predictor
        if self.devices.uses_host:
            trainers[HOST] = HostTrainer(known.loss_of_batch, self._parameters)
        cores, self._own_cores = self.devices.cores(), self.devices.own_cores()
        self._say(f"Starting {', '.join(self.devices.names)} ...")
        if self._config.sharing == "hyscale" and not self.devices.uses_host:
            self._say("Algorithm 1 moves nothing where the processor does not train: --sharing joint does.")
        try:
            for device in self.devices.cuda_devices(where="TrainConfig.devices"):
                copy = known.copied(device=device)
                given = (copy.model, copy.loss_of_batch, self._parameters, Streams(device))
                trainers[str(device)] = CudaTrainer(str(device), *given)
            for name, own, kernels in zip(accelerator_names(len(cores)), cores, self._kernels, strict=True):
                # A model that cannot be pickled is an InputError.
                parts = pickled((known.model, known.contract, known.mean_loss, current_engine()))
                replica = partial(_replica, self._model_file, parts, kernels)
                trainers[name] = ProcessTrainer(
                    name,
                    replica,
                    self._parameters,
                    cores=own,
                    bytes_per_s=self._config.link_rate if kernels is None else kernels.bytes_per_s,
                    clock=None if kernels is None else kernels.seconds,
                )
            for trainer in trainers.values():
                trainer.open()
        except BaseException:
            for trainer in trainers.values():
                with suppress(Exception):
                    trainer.close()
            raise
        return trainers


def require_trainers(predictor: Predictor, prepared: PreparedGraph, config: TrainConfig) -> None:
    """Refuse what the trainers of a run cannot train, before anything is started or written.

    Raises:
        LayerError: a model computes means over a mini-batch.
        InputError: edge data learn, a device is missing, or simulated kernels do not compute the model, or would for too long.
    """
    assert config.devices is not None
    assert config.sample is not None
    devices = Devices.parse(config.devices, where="TrainConfig.devices")
    devices.cuda_devices(where="TrainConfig.devices")
    devices.cores()
    require_shareable(predictor.model, prepared, "devices")
    if any(devices.fpga):
        from sagann.train.fpga import require_short

        size = config.seeds_per_batch
        batches = MiniBatches(prepared.sampled, fanouts=config.sample, batch_size=size, seed=config.seed, ahead=0)
        shares = _manager(devices, batches, config).assignment
        found = zip(
            accelerator_names(len(devices.fpga)), _kernels(devices, predictor, batches, config), strict=True
        )
        for name, kernels in found:
            is_fixed = config.sharing == "static" and config.mapping == "cores"
            if kernels is not None:
                require_short(kernels, batches, shares.seeds[name] if is_fixed else shares.total)


def _manager(devices: Devices, minibatches: MiniBatches, config: TrainConfig) -> Manager:
    return Manager(
        config.sharing,
        devices.weights(),
        batch_size=min(config.seeds_per_batch, len(minibatches.seeds)),
        uses_host=devices.uses_host,
    )


def _kernels(
    devices: Devices, predictor: Predictor, minibatches: MiniBatches, config: TrainConfig
) -> list[SimulatedKernels | None]:
    if not any(devices.fpga):
        return [None for _ in devices.fpga]
    # Imported here: few runs simulate any.
    from sagann.train.fpga import simulated_kernels

    return simulated_kernels(devices, predictor.model, minibatches, config.link_rate)


def _replica(
    model_file: tuple[Path, str] | None, parts: bytes, kernels: SimulatedKernels | None
) -> tuple[nn.Module, LossOf]:
    """A model in another process, with its loss: the user's file is executed, then model, contract, loss and engine are unpickled."""
    if model_file is not None:
        load_class(*model_file)
    model: nn.Module
    contract: Contract
    loss: Loss
    model, contract, loss, engine = pickle.loads(parts)
    set_engine(engine)
    model.train()
    predictor = Predictor(model, contract, device=torch.device("cpu"), loss=loss)
    return model, predictor.loss_of_batch if kernels is None else kernels.loss_of(predictor)
