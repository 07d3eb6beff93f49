"""TrainConfig: the options of training, apart from the model and the graph. Checked when it is made, saved as JSON."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from sagann.graph.answers import GRAPH_TASKS, LINK_TASK
from sagann.option_names import with_known_names
from sagann.train.config_checks import (
    check_devices,
    check_loss,
    check_options_of,
    check_tiers,
    check_values,
    class_of_torch,
    has_default,
    refused,
    require_defaults,
)

_SEEDS, _GRAPHS = 1024, 64
"Training vertices in a mini-batch, and graphs in a batch, where no number is given."
_SET_SAMPLE = "set sample (--sample 25,10)"
_OF_DEVICES = ("mapping", "sharing", "link_rate")
"Fields that only several trainers read."
_OF_TIERS = ("hot", "score", "cache")
"Fields that only mini-batches with a hot tier read."
READ_BESIDE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("devices",), _OF_DEVICES),
    (("hot", "memory"), _OF_TIERS[1:]),
    (("devices", "memory"), ("profile",)),
)
"Fields that may be None, and the fields that are refused where all of those are None."


@with_known_names
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How to train: length, optimizer, scheduler, early stopping, checkpoints.

    Raises:
        InputError: a field is out of its range, or an option is unknown to the optimizer or scheduler.
    Example:
        >>> TrainConfig(epochs=100, optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9}).lr
        0.1
        >>> TrainConfig(optimizer="Adma")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: unknown optimizer: 'Adma' (in TrainConfig.optimizer). Did you mean ...
    """

    epochs: int = 200
    "Number of passes over the training vertices, or graphs, at least 1."
    task: str | None = None
    """What the model learns: 'classification' (a class for each vertex), 'multi-label' (any number of classes) or 'regression' (numbers); about
    the graphs of several in one 'graph-classification', 'graph-multi-label' or 'graph-regression'. None is the task that the data have answers
    for; data with several kinds of answers need a name."""
    loss: str | None = None
    """Mean over vertices that is made small: 'cross_entropy' (classification), 'bce' (multi-label), 'mse', 'mae' or 'l1', 'huber' or 'smooth_l1'
    (regression). None is the first one of the task."""
    class_weights: str | tuple[float, ...] | None = None
    """Weight of each class in the loss cross_entropy: 'balanced' (every class weighs the same in the loss of the training vertices), or a number
    for each class. Weights are scaled so that their mean over the training vertices is 1. None weights all vertices alike."""
    optimizer: str = "Adam"
    "Name of a class in torch.optim."
    lr: float = 0.01
    "Learning rate, above 0."
    weight_decay: float | None = None
    "L2 penalty (decoupled in AdamW), at least 0. None is 5e-4 (Kipf's GCN), or 0 for an optimizer without weight decay."
    decay: str = "all"
    "Parameters that weight_decay is for: 'all', 'first-layer' (Kipf's GCN) or 'matrices' (no biases, no norms)."
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    "Further arguments of the optimizer ('momentum', 'betas', ...)."
    scheduler: str | None = None
    "Name of a class in torch.optim.lr_scheduler, stepped once per epoch; None keeps the learning rate."
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    "Arguments of the scheduler ('step_size', 'gamma', ...)."
    clip_norm: float | None = None
    "Largest norm of all gradients together; larger gradients are scaled down. None does not clip."
    seed: int = 0
    "Seed of all random numbers of training, and of the weights where Trainer builds the model."
    device: str = "auto"
    """Device that computes: 'cpu', 'cuda' or 'cuda:N'; 'auto' is cuda where there is one. With 'cuda', every worker of a machine has one of its
    own; 'auto' is the processor where one has none, or where workers stream within a memory budget."""
    deterministic: bool = True
    "Refuse operators that have no reproducible implementation on the device, so that the same seed gives the same bits."
    sample: tuple[int, ...] | None = None
    """Fanouts of mini-batches: for each hop, the number of in-edges that a vertex picks; the first number is that of the hop nearest the
    seeds, and -1 picks all. Evaluation takes all in-edges. None trains on the whole graph at once."""
    batch_size: int | None = None
    """Number of training vertices, or of links to learn, in a mini-batch, where sample is set, or of graphs in a batch, where whole graphs are
    learned; where links are learned on the whole graph, number of links in a step. None is 1024 vertices or links, 64 graphs, or all links."""
    negatives: int = 1
    "Where links are learned: number of negative links that are drawn for each positive one, at least 1."
    keep_positives: bool = False
    "Where links are learned on mini-batches: whether messages travel along a batch's positive links and their reverses too, which gives them away."
    sampling_threads: int = 1
    "Number of threads that sample mini-batches, and of threads that load their features. It does not change the numbers."
    sample_on: str = "cpu"
    """Who samples mini-batches: 'cpu' (the processor) or 'device' (the CUDA device that trains; edges that find no room in half of its free memory are read in
    place from the host's). It does not change the numbers."""
    batches_ahead: int | None = None
    """Most batches that are made before the training step needs them; 0 makes each one when it is needed. None is 0 on a processor of
    one or two cores with all data in memory or in the page cache, else 4. It does not change the numbers."""
    devices: str | None = None
    """Who trains each mini-batch together: 'host' (the processor, in this process) at most once, 'cuda:N' for a CUDA device, and 'accelerator' for each
    process of its own. Processor and processes may state their cores: 'host:2,accelerator:1'. 'auto' is the processor and all CUDA devices. Each trains a
    share of the seeds. None trains on the one device."""
    mapping: str = "cores"
    """How seeds and threads are shared out between the devices when a run begins: 'cores' (in proportion to their cores; a CUDA device counts as all
    cores of the processor) or 'model' (with the shares for which the performance model expects the shortest iteration, after a rehearsal of some
    seconds). A resumed run goes on with the shares that it had."""
    sharing: str = "joint"
    """How seeds and threads are shared out between the devices after each mini-batch: 'joint' (all at once, by measured speeds), 'hyscale' (the
    paper's Algorithm 1) or 'static' (as the run began)."""
    link_rate: float | None = None
    "Bytes per second at which mini-batches are copied to an accelerator in a process of its own, above 0. None is as fast as memory is."
    hot: str | None = None
    """Size of the hot tier, the memory for rows of features that mini-batches read most: a size as '2GiB', a part of the rows as '10%', or
    'auto' for half of the free memory. Other rows are read from where they are. None is what the memory budget has room for, or no hot
    tier where there is no budget. On a CUDA device, the tier lies on the device where the graph lies in the host's memory. It does not
    change the numbers."""
    score: str = "vip"
    """Score by which vertices are hot: 'degree', 'rpr' (reverse PageRank), 'wrpr' (the same from the training vertices) or 'vip' (the
    probability that a mini-batch reads the vertex). It does not change the numbers."""
    cache: str = "look-ahead"
    """What the hot tier keeps: 'static' (the rows of the highest score), 's3-fifo' (rows that were read several times lately) or
    'look-ahead' (rows that the next batches_ahead mini-batches read). It does not change the numbers."""
    memory: str | None = None
    """Memory budget of an epoch's tensors of vertices and edges, as '2GiB'. The model is streamed by intervals within the
    budget, with the numbers of a dense run. Where sample is set, evaluations are streamed within half of the budget, and the hot tier and
    the mini-batches that are made ahead stay within it too. None trains with everything in memory where that fits, else within
    the free memory."""
    spill: str | None = None
    """Folder for blocks of a streamed model that are not in memory. None is a folder in the run folder, or the system's
    folder for temporary files; beside a CUDA device, None is the host's memory."""
    profile: bool = False
    """Write profile.json and profile.png into the run folder: the steps and copies of the last streamed epoch, as planned
    and as they ran, in Chrome's format for traces and as a picture. With devices, profile.json has the stages, the trainers and the decisions of
    the last epoch."""
    monitor: str | None = None
    """Metric that early stopping and the best weights go by: 'val/accuracy', 'val/loss', 'val/r2', 'train/loss', ... None is
    'val/accuracy' ('val/loss' for multi-label and regression, 'val/mrr' for links), or 'train/loss' where there is no val split."""
    patience: int | None = None
    "Number of epochs without improvement of the monitored metric after which training stops; None never stops early."
    weights: str | None = None
    "Weights that a run ends with: 'best' by the monitor or 'last'. None is 'best' where val is monitored, else 'last'."
    eval_every: int = 1
    """Number of epochs from one evaluation of train and val to the next. The last epoch is always evaluated. Where
    eval_every does not divide the number of epochs, the last evaluation is only reported: it sets no best epoch and steps
    no scheduler."""
    checkpoint_every: int = 10
    """Largest number of epochs from one checkpoint to the next, if there is a run folder. Long epochs leave more checkpoints, and the
    last epoch always leaves one."""
    keep_checkpoints: int = 2
    "Number of newest checkpoints to keep, at least 1."
    tensorboard: bool = False
    "Write TensorBoard events into the run folder (extra 'tensorboard')."

    def __post_init__(self) -> None:
        check_loss(self)
        optimizer = class_of_torch(torch.optim, torch.optim.Optimizer, self.optimizer, "optimizer")
        has_decay = "weight_decay" in inspect.signature(optimizer).parameters
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", 5e-4 if has_decay else 0.0)
        check_values(self)
        check_options_of(self, "optimizer", optimizer, {"params", "lr", "weight_decay"})
        if self.weight_decay and not has_decay:
            expected = f"0 for the optimizer '{self.optimizer}', which has no weight decay"
            raise refused("weight_decay", self.weight_decay, expected)
        if self.scheduler is not None:
            schedulers = torch.optim.lr_scheduler
            scheduler = class_of_torch(schedulers, schedulers.LRScheduler, self.scheduler, "scheduler")
            check_options_of(self, "scheduler", scheduler, {"optimizer"})
        elif self.scheduler_options:
            fix = "Leave scheduler_options out, or name a scheduler (--scheduler StepLR)."
            raise refused("scheduler_options", dict(self.scheduler_options), "{} where no scheduler is set", fix)
        if self.sample is not None:
            # JSON and TOML have lists.
            object.__setattr__(self, "sample", tuple(map(int, self.sample)))
            if self.devices is None:
                what = "sample is set, for only a streamed epoch, or one of several trainers, is profiled"
                require_defaults(self, ("profile",), what)
        if self.device == "cpu":
            require_defaults(self, ("sample_on",), "device is 'cpu'")
        if self.sample is None:
            names = ("sampling_threads", "sample_on", *_OF_TIERS, "devices")
            require_defaults(self, names, "sample is not set", otherwise=_SET_SAMPLE)
        elif self.has_tiers:
            check_tiers(self)
        elif not all(has_default(self, name) for name in _OF_TIERS):
            check_tiers(self)
            require_defaults(self, _OF_TIERS, "neither hot nor memory is set", otherwise="set hot (--hot 10%)")
        if self.devices is None:
            require_defaults(
                self,
                _OF_DEVICES,
                "devices is not set",
                otherwise="set sample and devices (--sample 25,10 --devices auto)",
            )
        else:
            check_devices(self)
        if self.memory is None and self.devices is None:
            what = "no memory is set, for only a streamed epoch is profiled"
            require_defaults(self, ("profile",), what, otherwise="set memory (--memory 2GiB)")
        if self.task is not None:
            self.require_effect(of_graphs=self.task in GRAPH_TASKS, of_links=self.task == LINK_TASK)
        if self.spill is not None:
            # A run may be resumed or reopened from another folder.
            object.__setattr__(self, "spill", os.path.abspath(self.spill))

    @property
    def has_tiers(self) -> bool:
        """Whether features of mini-batches may come from a hot tier."""
        return self.sample is not None and (self.hot is not None or self.memory is not None)

    @property
    def seeds_per_batch(self) -> int:
        """Number of training vertices in a mini-batch."""
        return self.batch_size or _SEEDS

    @property
    def graphs_per_batch(self) -> int:
        """Number of graphs in a batch, where whole graphs are learned."""
        return self.batch_size or _GRAPHS

    def require_effect(self, *, of_graphs: bool, of_links: bool) -> None:
        """Refuse options that have no effect on a task; the arguments say whether whole graphs are learned, or links.

        A configuration that names its task has been checked.

        Raises:
            InputError: such an option is set.
        """
        if of_links:
            require_defaults(self, ("devices",), "links are learned, which one trainer does")
            if self.sample is None:
                what, names = (
                    "links are learned and sample is not set",
                    ("batches_ahead", "memory", "keep_positives"),
                )
                require_defaults(self, names, what, otherwise=_SET_SAMPLE)
            return
        learn_links = f"learn links (--task {LINK_TASK})"
        require_defaults(self, ("negatives", "keep_positives"), "links are not learned", otherwise=learn_links)
        if of_graphs:
            what = "whole graphs are learned, which are trained in batches of graphs"
            require_defaults(self, ("sample", "memory"), what)
        elif self.sample is None:
            # A run that was begun when None was this number goes on.
            not_read = ("batches_ahead", "batch_size")[: 1 + (self.seeds_per_batch != _SEEDS)]
            require_defaults(self, not_read, "sample is not set", otherwise=_SET_SAMPLE)

    def to_json(self) -> dict[str, Any]:
        """Every field as JSON values, which make the same configuration again."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
