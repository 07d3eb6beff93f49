"""HybridEpochs: the epoch source whose mini-batches are trained by the processor and accelerators together.

Its steps are those of :class:`~sagann.train.batch_epochs.SampledEpochs`: the loss is that of the whole mini-batch, and only its computation
is shared out. The trainer with the weights that are trained computes its share as any step does; gradients of the others are added to its own.
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
from sagann.hybrid.cuda_trainer import CudaTrainer, OwnCudaTrainer
from sagann.hybrid.devices import Devices, on_cores
from sagann.hybrid.forecast import accelerator_names
from sagann.hybrid.manager import Manager
from sagann.hybrid.process_trainer import ProcessTrainer, pickled
from sagann.hybrid.shared_batches import Iteration, SharedBatches
from sagann.hybrid.synchronise import Synchroniser, require_finite
from sagann.hybrid.trainer import Found, HostTrainer, LossOf, OwnTrainer, Trainer, Weights
from sagann.nn.user_model import load_class
from sagann.runtime.device.streams import Streams
from sagann.runtime.loading import MiniBatches
from sagann.runtime.recorder import Recorder
from sagann.runtime.tiered import DeviceFeatures, DeviceSampler, DeviceTopology
from sagann.saga.engine import current_engine, set_engine
from sagann.train.batch_epochs import SampledEpochs, require_shareable
from sagann.train.epoch_source import TrainStep
from sagann.train.predictor import Predictor
from sagann.train.runner import PreparedGraph

if TYPE_CHECKING:
    from sagann.nn import ModelConfig
    from sagann.train.fpga import SimulatedKernels


class HybridEpochs(SampledEpochs):
    """The epoch source of ``TrainConfig.devices``. ``model_config`` names the file of a user's model, which accelerators load. ``like`` is another
    source of the same graph and configuration, whose mini-batches and hot tiers this one has, too.
    """

    _hot: DeviceFeatures | None = None
    "The hot tiers of the CUDA devices."
    _edges: DeviceTopology | None = None
    "The edges for CUDA devices that sample."

    def __init__(
        self,
        predictor: Predictor,
        prepared: PreparedGraph,
        config: TrainConfig,
        *,
        model_config: ModelConfig | None = None,
        say: Callable[[str], None] = lambda text: None,
        like: HybridEpochs | None = None,
    ) -> None:
        assert config.devices is not None
        self._config, self._say = config, say
        self.devices = devices = Devices.parse(config.devices, where="TrainConfig.devices")
        "Who trains."
        devices.cores()
        require_shareable(predictor.model, prepared, "devices")
        if like is not None:
            self._hot, self._edges = like._hot, like._edges
        super().__init__(
            predictor, prepared, config, say=say, minibatches=None if like is None else like.minibatches
        )
        self._model_file = None if model_config is None else class_in_file(model_config.model)
        total = min(config.seeds_per_batch, len(self.minibatches.seeds))
        self.manager = Manager(config.sharing, devices.weights(), batch_size=total, uses_host=devices.uses_host)
        self.has_shares = False
        "Whether seeds and threads are those of a checkpoint."
        self._own_cores: tuple[int, ...] = ()
        "Cores that this process keeps to while accelerators have others; none for all."
        self._parameters = tuple(predictor.model.parameters())
        self._threads = torch.get_num_threads()
        self.trainers: Mapping[str, Trainer] = {}
        self._own, self._own_name = OwnTrainer(predictor.loss_of_batch), HOST
        self._synchroniser: Synchroniser
        self._weights: Weights | None = None
        "The parameters as they are, if they have been published since they changed."
        self._kernels: list[SimulatedKernels | None] = [None for _ in devices.fpga]
        if any(devices.fpga):
            # Few runs simulate any.
            from sagann.train.fpga import simulated_kernels

            are_fixed = config.sharing == "static" and config.mapping == "cores"
            most = self.manager.assignment.seeds if are_fixed else dict.fromkeys(devices.names, total)
            self._kernels = simulated_kernels(devices, predictor, self.minibatches, config.link_rate, most)

    @property
    def ahead(self) -> int:
        """Most iterations that are prepared ahead with the present threads."""
        return self._batches().ahead

    def _batches(self, trace: Recorder | None = None) -> SharedBatches:
        ahead = self._config.batches_ahead if self._config.memory is None else self.minibatches.ahead
        return SharedBatches(self.minibatches, self.manager, self.trainers, ahead=ahead, trace=trace)

    def _made(self, config: TrainConfig, say: Callable[[str], None]) -> MiniBatches:
        devices = self.devices
        # Vertices that several trainers need are sampled and loaded for each, and shares of processes are copied.
        copies = devices.uses_host + len(devices.names) + len(devices.accelerator_cores)
        there = devices.cuda_devices() or [self._predictor.device]
        # A hot tier keeps the rows of the highest score: batches of several trainers are not announced.
        if config.has_tiers:
            config = replace(config, cache="static")
        is_cuda = bool(devices.cuda)
        graph, ahead, edges = self._tiered(config, say, there, gathers_there=is_cuda, copies=copies)
        # Each device has its own view of hot tiers and edges, and other trainers read the host's memory.
        if isinstance(graph.features, DeviceFeatures):
            self._hot, graph = graph.features, self._prepared.sampled
        if isinstance(edges, DeviceTopology):
            self._edges = edges
        return self._batches_of(config, graph, ahead)

    def steps(self, epoch: int, *, first: int = 0) -> Generator[TrainStep, None, None]:
        self.manager.begin()
        # They may have been restored.
        self._weights = None
        self.trace = Recorder() if self._config.profile else None
        batches = self._batches(self.trace)
        try:
            with on_cores(self._own_cores), self.counting(batches.iterations(epoch, first=first)) as iterations:
                for iteration in iterations:
                    yield TrainStep(
                        loss=partial(self._loss, iteration, iterations.go_on),
                        num_labelled=iteration.num_seeds,
                        num_edges=iteration.num_edges,
                        backward=partial(self._own.backward, iteration.name),
                        complete=partial(self._complete, iteration),
                        note=self.manager.why,
                    )
                    self._weights = self._synchroniser.publish() if self._others(iteration) else None
                    work, times = self.manager.work, iteration.times(iteration.train_s)
                    work.count(iteration.assignment, times, iteration.trained_s, self.manager.why)
                    for name, seconds in iteration.simulation_s.items():
                        work.simulation_s[name] += seconds
                    for name, sent in iteration.sent.items():
                        self.trainers[name].release(sent)
        finally:
            # Evaluation has all threads.
            torch.set_num_threads(self._threads)
        self.work = self.manager.work

    def state_dict(self) -> dict[str, Any]:
        return self.manager.state_dict()

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        # A run may have been begun by one device.
        self.has_shares = "cores" in found and self.manager.load_state_dict(found)

    def open(self) -> None:
        assert self.balancer is None, "workers and devices exclude each other"
        if not self.trainers:
            self.trainers = self._started()

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.close()
        self.trainers = {}

    def _others(self, iteration: Iteration) -> list[str]:
        """Names of the trainers with a share and a copy of the weights, in the order in which gradients are added."""
        return [name for name in iteration.sent if name != self._own_name]

    def _loss(self, iteration: Iteration, launched: Callable[[], None]) -> Tensor:
        """The part of the loss that is the own trainer's, perhaps not for the first time; the others have begun theirs."""
        iteration.launched_s = time.perf_counter()
        if (threads := iteration.assignment.working.train) != torch.get_num_threads():
            torch.set_num_threads(threads)
        if others := self._others(iteration):
            weights, self._weights = self._weights or self._synchroniser.publish(), None
            for name in others:
                self.trainers[name].launch(iteration.sent[name], weights)
        launched()
        if self._own_name in iteration.sent:
            return self._own.loss(iteration.sent[self._own_name])
        # Whose gradient is that of the others.
        return torch.zeros((), device=self._predictor.device, requires_grad=True)

    def _complete(self, iteration: Iteration, loss: Tensor, num_edges: int) -> tuple[Tensor, int]:
        """Add loss and gradients of the others, and learn from the seconds."""
        others, found = self._others(iteration), dict[str, Found]()
        if self._own_name in iteration.sent:
            gradients = [each.grad for each in self._parameters if each.grad is not None] if others else []
            found[self._own_name] = self._own.ended(loss, gradients)
        for name in others:
            found[name] = self.trainers[name].finish()
            loss = self._synchroniser.add(name, found[name], loss)
        # All of it is queued, and the training step reads the loss next: here nothing waits that would not wait there.
        seconds, train_s = time.perf_counter() - iteration.launched_s, dict[str, float]()
        for name, each in found.items():
            train_s[name] = each.elapsed.seconds()
            iteration.train_s[name] = iteration.train_s.get(name, 0.0) + train_s[name]
            if each.simulation_s:
                iteration.transfer_s[name] = each.transfer_s
                iteration.simulation_s[name] = iteration.simulation_s.get(name, 0.0) + each.simulation_s
        if len(found) > 1:
            require_finite({name: each.numbers.tolist() for name, each in found.items()}, iteration.name)
        is_moved = self.manager.learn(iteration.assignment, iteration.times(train_s))
        if self.trace is not None:
            for name, each_s in train_s.items():
                self.trace.add(name, iteration.name, iteration.launched_s, each_s)
            if is_moved:
                self.trace.add("decisions", self.manager.why, time.perf_counter(), 0.0)
        longest_s = max(train_s.values())
        # Nobody would wait for a simulation.
        iteration.trained_s += longest_s if iteration.simulation_s else max(longest_s, seconds)
        return loss, num_edges

    def _started(self) -> dict[str, Trainer]:
        """The trainers, that of the processor first. The first CUDA device has the weights, or else the processor."""
        trainers, known = dict[str, Trainer](), self._predictor
        cores, self._own_cores = self.devices.cores(), self.devices.own_cores()
        self._say(f"Starting {', '.join(self.devices.names)} ...")
        if self._config.sharing == "hyscale" and not self.devices.uses_host:
            self._say("Algorithm 1 moves nothing where the processor does not train: --sharing joint does.")
        devices = self.devices.cuda_devices()
        streams = [Streams(device) for device in devices]
        self._synchroniser = Synchroniser(self._parameters, *streams[:1])
        on_host = known.copied(device=torch.device("cpu")) if devices else known
        on_host.model.train()
        # A model that cannot be pickled is an InputError.
        parts = pickled((on_host.model, known.contract, known.mean_loss, current_engine())) if cores else b""
        if self.devices.uses_host:
            weights, memory = self._synchroniser.weights, self._synchroniser.pinned()
            copied = HostTrainer(on_host.model, on_host.loss_of_batch, weights, memory) if devices else self._own
            trainers[HOST] = copied
        if self._hot is not None:
            self._stores = [self._hot, *(self._hot.seen_from(at) for at in range(1, len(devices)))]
        try:
            for number, (name, device) in enumerate(zip(self.devices.cuda, devices, strict=True)):
                # The hot rows as a device sees them, and its sampler.
                given: dict[str, Any] = {} if self._hot is None else {"features": self._stores[number]}
                if self._edges is not None:
                    like = self.minibatches.neighbor_sampler
                    edges = self._edges.seen_from(number)
                    given["sampler"] = DeviceSampler(edges, like.fanouts, seed=like.seed)
                if number == 0:
                    trainers[name] = self._own = OwnCudaTrainer(name, known.loss_of_batch, streams[0], **given)
                    self._own_name = name
                    continue
                copy = known.copied(device=device)
                copy.model.train()
                trainers[name] = CudaTrainer(name, copy.model, copy.loss_of_batch, streams[number], **given)
            for name, own, kernels in zip(accelerator_names(len(cores)), cores, self._kernels, strict=True):
                trainers[name] = ProcessTrainer(
                    name,
                    partial(_replica, self._model_file, parts, kernels),
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


def _replica(
    model_file: tuple[Path, str] | None, parts: bytes, kernels: SimulatedKernels | None
) -> tuple[nn.Module, LossOf]:
    """A model in another process, with its loss: the user's file is executed, then model, contract, loss and engine are unpickled."""
    if model_file is not None:
        load_class(*model_file)
    model: nn.Module
    model, contract, loss, engine = pickle.loads(parts)
    set_engine(engine)
    model.train()
    predictor = Predictor(model, contract, device=torch.device("cpu"), loss=loss)
    return model, predictor.loss_of_batch if kernels is None else kernels.loss_of(predictor)
