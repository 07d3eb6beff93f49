"""Configurations: everything that decides a run, with all that is known of each option in one place (:mod:`sagann.options`).

The command line, files with settings, Python, resumed runs and workers read these fields. Names that a registry owns (optimizers,
losses, metrics, models) are checked by that registry when a configuration is made. Nothing here loads PyTorch by itself.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from sagann.byte_size import parse_bytes
from sagann.options import (
    ADVANCED,
    FREE,
    Arguments,
    Metavar,
    Needs,
    Option,
    Panel,
    Values,
    Weights,
    above,
    at_least,
    check_fields,
    integers,
    one_of,
    options,
    options_of,
    refuse,
    require_effect,
)
from sagann.registry import default
from sagann.toml_text import format_toml

_RESOURCES, _BATCHES, _EVALUATION = Panel("Devices and memory"), Panel("Mini-batches"), Panel("Evaluation")
# Among the options of every command.
_RUN = Panel("Options")

# An epoch of a thousand layers takes minutes on any graph. The sizes of wider tensors do not fit 64 bits. Threads are started all at once.
_LAYERS, _COUNTS = integers(1, 1000), integers(1, 2**63 - 1)
_WIDTHS, _THREADS = integers(1, 2**31 - 1), integers(1, 2**13)
_PROBABILITIES = Values(lambda value: 0 <= value < 1, "a number from 0 to less than 1")
_FANOUTS = Values(lambda value: value == -1 or _WIDTHS.fit(value), f"{_WIDTHS.text} or -1")
_SIZES = Values(
    lambda size: parse_bytes(size, where="TrainConfig.memory") > 0, "a size above 0 such as '2GiB'", "SIZE"
)
_FOLDERS = Values(lambda value: value != "" and b"\0" not in os.fsencode(value), "a folder", "FOLDER")
_IS_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|cuda:\d+(,cuda:\d+)+").fullmatch
_NAMES = "'cpu', 'cuda', 'cuda:N', several as 'cuda:0,cuda:1', or 'auto'"
_DEVICES = Values(lambda value: _IS_DEVICE(value) is not None, _NAMES, "auto|cpu|cuda|cuda:N,...")
MOST_WAIT_S = 1e6
"Most seconds for which a worker waits: the transport of workers counts milliseconds."
_WAITS = Values(lambda value: 1e-3 <= value <= MOST_WAIT_S, f"seconds from 0.001 to {MOST_WAIT_S:g}", "SECONDS")
_SHARES = Values(lambda _: True, "a size as '2GiB', a part of the rows as '10%', 'auto'", "SIZE|PERCENT|auto")
_LOSSES, _OPTIMIZERS, _SCHEDULERS = (
    Values(lambda _: True, f"a name (pass a function as Trainer(..., {role}=...))", "NAME")
    for role in ("loss", "optimizer", "scheduler")
)
_ENDS = Values(
    ("best", "last").__contains__, "'best' or 'last' (weights of classes are class_weights)", "best|last"
)
_SCORES, _CACHES = one_of("degree", "rpr", "wrpr", "vip"), one_of("static", "look-ahead")
_TRAINERS = Metavar("auto|host:N,cuda:N,accelerator:N,...")
_TASKS = Metavar("[graph-]classification|multi-label|regression, or link-prediction")
_SET_SAMPLE = "set sample (--sample 25,10)"
_SCHEDULED, _SAMPLED = Needs(("scheduler",), "--scheduler StepLR"), Needs(("sample",), "--sample 25,10")
_TIERED, _SHARED = Needs(("hot", "memory"), "--hot 10%"), Needs(("devices",), "--devices auto, with --sample 25,10")
_SEEDS, _GRAPHS = 1024, 64
OF_GRAPHS = "graph-"
"What the name of a task on whole graphs begins with."
LINK_TASK = "link-prediction"
"The task on pairs of vertices: whether an edge joins them."
ATTENTION = ("gat", "gatv2", "transformer")
"Models of the zoo with attention heads."


def class_in_file(reference: str) -> tuple[Path, str] | None:
    """The file and the class that ``path/to/file.py:ClassName`` names; None for the name of a model of the zoo."""
    filename, _, class_name = reference.rpartition(":")
    return (Path(filename), class_name) if ".py:" in reference else None


@options("data", "Data")
@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which graph a run opens, and how the graph is changed and split."""

    data: Annotated[str, Metavar("PATH|NAME")]
    "A dataset folder, an .npz file, or the name of an embedded graph (demo)."
    split: Annotated[str | None, Metavar("SPLIT")] = None
    """random:TRAIN,VAL (shares), per-class:TRAIN,VAL (vertices per class), planetoid:TRAIN,VAL,TEST (TRAIN per class), or
    graphs:TRAIN/VAL/TEST (names or positions, comma-separated), drawn with the run's seed. None takes the dataset's own split, or else
    random:0.6,0.2. For links: edges:TRAIN,VAL (shares of the edges to train and validate on), by default edges:0.85,0.05."""
    targets: tuple[int, ...] | None = None
    "Columns of the targets that a regression learns, from 0; None learns all."
    undirected: bool = False
    "Add the reverse of every edge and merge multi-edges."
    inverse_edges: bool = False
    "For typed graphs: add to every edge a reverse edge with a type of its own."
    normalise_features: bool = False
    "Divide each vertex's features by their sum."
    verify: Annotated[bool, ADVANCED] = True
    "Verify the checksums of the dataset's files, to detect corruption."

    def __post_init__(self) -> None:
        check_fields(self)


@options("model", "Model")
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A model by name and size.

    Example:
        >>> ModelConfig(model="gat", heads=4).hidden
        128
    """

    model: Annotated[str, Metavar("NAME|FILE.py:CLASS")] = "gcn"
    """A model of the zoo, such as gcn, sage, gat or gin (the error for an unknown name lists them all); or ``path/to/file.py:ClassName``
    for your own layer or model."""
    layers: Annotated[int, _LAYERS] = 2
    "Number of layers; for ggnn, number of steps with shared parameters; for appnp and sgc, number of hops."
    hidden: Annotated[int, _WIDTHS] = 128
    "Width of the layers between the first and the last; for gat, gatv2 and transformer, width of all heads together."
    dropout: Annotated[float, _PROBABILITIES] = 0.5
    "Probability of dropping an input of a layer."
    norm: Annotated[str | None, one_of("batch", "layer")] = None
    """Norm after every layer but the last: 'batch' (BatchNorm) or 'layer' (LayerNorm). In training, BatchNorm uses statistics over all
    vertices, or over the mini-batch; several devices do not support it."""
    encoder: Annotated[str, one_of("auto", "none", "linear", "embedding")] = "auto"
    """Module before the first layer: 'none'; 'linear' (dense or sparse features to ``hidden``); 'embedding' (a learned row per vertex);
    'auto' (embedding without features, linear for ggnn, else none). appnp and sgc have maps of their own, and ignore encoder and norm."""
    heads: Annotated[int, _WIDTHS] = 8
    "For gat, gatv2 and transformer: number of heads of all layers but the last."
    pool: Annotated[str, Metavar("NAME,NAME,...")] = "mean"
    """For whole graphs: how the rows of a graph's vertices are pooled into one: 'mean', 'sum', 'max', 'min', 'var', 'std', 'mul', or
    several, concatenated, as 'mean,max'. Two linear maps follow."""
    decoder: Annotated[str, one_of("auto", "dot", "distmult", "mlp")] = "auto"
    """For links: the score of two vertices' rows: 'dot' (dot product), 'distmult' (weighted by the type of the link), 'mlp' (two linear
    maps of the product) or 'auto' (distmult if edges have types, else dot). A model with its own score has no decoder."""
    model_options: Arguments = field(default_factory=dict, hash=False)
    """Further arguments of the model. gat, gatv2, transformer: out_heads (heads of the last layer, averaged, 1) and attention_dropout (0);
    gat, gatv2: negative_slope (0.2); appnp: teleport (0.1); residual-gcn: linear_shortcut (false); your own layer or model: the arguments
    of its constructor."""

    def __post_init__(self) -> None:
        check_fields(self)
        if named := class_in_file(self.model):
            # A run may be resumed or reopened from another folder.
            object.__setattr__(self, "model", f"{named[0].absolute()}:{named[1]}")
        default("model names")(self)

    def without_effect(self, *, of_graphs: bool = False) -> str:
        """A sentence about the options that differ from their defaults and that nothing reads; empty where there are none.

        A decoder that nothing reads is refused when the model is built. ``of_graphs`` says whether whole graphs are learned.

        Example:
            >>> ModelConfig(model="gcn", heads=4).without_effect()
            'heads = 4 has no effect on gcn: gat, gatv2, transformer read it.'
        """
        said = []
        known = options_of(ModelConfig)
        if self.heads != known["heads"].default and self.model not in ATTENTION:
            hint = f"{', '.join(ATTENTION)} read it"
            if class_in_file(self.model):
                hint = "options of your own model are given by --model-option heads=VALUE, or model_options"
            said.append(f"heads = {self.heads} has no effect on {self.model}: {hint}.")
        if self.pool != known["pool"].default and not of_graphs:
            said.append(f"pool = {self.pool} has no effect here: it is read where whole graphs are learned.")
        return " ".join(said)


@options("train", "Training")
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How to train: length, optimizer, scheduler, early stopping, checkpoints.

    Raises:
        InputError: a field is out of its range, or an option is unknown to the optimizer or scheduler.
    Example:
        >>> TrainConfig(epochs=100, optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9}).lr
        0.1
    """

    epochs: Annotated[int, _COUNTS, FREE] = 200
    "Number of passes over the training vertices, or graphs, at least 1."
    task: Annotated[str | None, _TASKS] = None
    """What the model learns: 'classification' (a class for each vertex), 'multi-label' (any number of classes) or 'regression' (numbers);
    for whole graphs 'graph-classification', 'graph-multi-label' or 'graph-regression'. None infers the task from the data, if only one is
    possible."""
    loss: Annotated[str | None, _LOSSES] = None
    """Loss to minimise: 'cross_entropy' (classification), 'bce' (multi-label), 'mse', 'mae' or 'l1', 'huber' or 'smooth_l1' (regression),
    'link_bce' (links; all negatives together weigh as much as the positives) or 'link_softmax' (links; the positive against its negatives).
    None is the first one listed for the task."""
    class_weights: Annotated[Weights | None, at_least(0)] = None
    """Weight of each class in the loss cross_entropy: 'balanced' (every class has the same total weight), or a number per class. Weights
    are scaled to a mean of 1 over the training vertices. None weights all vertices equally."""
    optimizer: Annotated[str, _OPTIMIZERS] = "Adam"
    "Name of a class in torch.optim."
    lr: Annotated[float, above(0)] = 0.01
    "Learning rate, above 0."
    weight_decay: Annotated[float | None, at_least(0)] = None
    "L2 penalty (decoupled in AdamW), at least 0. None is 5e-4 (Kipf's GCN), or 0 for an optimizer without weight decay."
    decay: Annotated[str, ADVANCED, one_of("all", "first-layer", "matrices")] = "all"
    "Parameters that weight_decay applies to: 'all', 'first-layer' (Kipf's GCN) or 'matrices' (no biases, no norms)."
    optimizer_options: Annotated[Arguments, ADVANCED] = field(default_factory=dict)
    "Further arguments of the optimizer ('momentum', 'betas', ...)."
    scheduler: Annotated[str | None, _SCHEDULERS] = None
    "Name of a class in torch.optim.lr_scheduler, stepped once per epoch; None keeps the learning rate."
    scheduler_options: Annotated[Arguments, ADVANCED, _SCHEDULED] = field(default_factory=dict)
    "Arguments of the scheduler ('step_size', 'gamma', ...)."
    clip_norm: Annotated[float | None, above(0)] = None
    "Maximum norm of all gradients together; larger ones are scaled down. None disables clipping."
    seed: Annotated[int, integers(0, 2**63 - 1)] = 0
    "Seed of all random numbers in training, and of the weights if Trainer builds the model."
    device: Annotated[str, _RESOURCES, _DEVICES] = "auto"
    """Computing device: 'cpu', 'cuda' or 'cuda:N'; 'auto' is cuda if available. With 'cuda', every worker of a machine gets its own; 'auto'
    falls back to the processor if there are too few. Several, as 'cuda:0,cuda:1', share a streamed epoch, each within the memory budget."""
    deterministic: Annotated[bool, ADVANCED] = True
    "Refuse operators without a reproducible implementation on the device, so that results are bitwise reproducible."
    sample: Annotated[tuple[int, ...] | None, _BATCHES, _FANOUTS] = None
    """Fanouts of mini-batches: for each hop, starting at the seeds, the number of in-edges sampled per vertex; -1 takes all. Evaluation
    uses all in-edges. None trains on the whole graph at once."""
    batch_size: Annotated[int | None, _BATCHES, _COUNTS] = None
    """Number of training vertices or links per mini-batch (with sample), of graphs per batch (for whole graphs), or of links per step (for
    links on the whole graph). None is 1024 vertices or links, 64 graphs, or all links."""
    negatives: Annotated[int, _BATCHES, integers(1, 2**16)] = 1
    "For links: number of negative links drawn per positive link, at least 1."
    keep_positives: Annotated[bool, ADVANCED, _BATCHES] = False
    "For links on mini-batches: also send messages along a batch's positive links and their reverses, which leaks the labels."
    sampling_threads: Annotated[int, ADVANCED, _BATCHES, _THREADS, FREE, _SAMPLED] = 1
    """Number of threads that sample mini-batches, and of threads that load their features (one with cache look-ahead). Results do not
    depend on it."""
    sample_on: Annotated[str, ADVANCED, _BATCHES, one_of("cpu", "device"), FREE, _SAMPLED] = "cpu"
    """Where mini-batches are sampled: 'cpu' or 'device' (the CUDA device that trains; edges that do not fit in half of its free memory are
    read in place from the host). Only the last bits of results depend on it, if the device pads batches."""
    batches_ahead: Annotated[int | None, ADVANCED, _BATCHES, integers(0, 2**13), FREE] = None
    """Maximum number of batches prepared ahead of the training step; 0 prepares each when it is needed. None is 0 on a processor of one or
    two cores with all data in memory or in the page cache, else 4. Results do not depend on it."""
    devices: Annotated[str | None, _RESOURCES, _TRAINERS, FREE, _SAMPLED] = None
    """Trainers that split each mini-batch: 'host' (the processor, in this process) at most once, 'cuda:N' for a CUDA device, and
    'accelerator' for each further process, with cores as in 'host:2,accelerator:1'; 'accelerator:fpga' simulates the time of hardware
    kernels, 'accelerator:fpga:kernel' also their arithmetic, 'accelerator:fpga:rtl' their circuits (extra 'hardware'). 'auto' is the
    processor and all CUDA devices. None is one device."""
    mapping: Annotated[str, ADVANCED, _RESOURCES, one_of("cores", "model"), FREE, _SHARED] = "cores"
    """How seeds and threads are split between the devices at the start of a run: 'cores' (in proportion to their cores; a CUDA device
    counts as all cores of the processor) or 'model' (for the shortest iteration by the performance model, after measuring for a few
    seconds)."""
    sharing: Annotated[str, ADVANCED, _RESOURCES, one_of("joint", "hyscale", "static"), FREE, _SHARED] = "joint"
    """How seeds and threads are split between the devices after each mini-batch: 'joint' (all at once, by measured speeds), 'hyscale' (the
    paper's Algorithm 1) or 'static' (unchanged)."""
    link_rate: Annotated[float | None, ADVANCED, _RESOURCES, above(0), Metavar("BYTES_PER_S"), FREE, _SHARED] = None
    "Bytes per second at which mini-batches are copied to an accelerator in its own process, above 0. None is the speed of memory."
    hot: Annotated[str | None, _BATCHES, _SHARES, FREE, _SAMPLED] = None
    """Size of the hot tier, the memory for the feature rows that mini-batches read most: a size as '2GiB', a share of the rows as '10%', or
    'auto' for half of the free memory. Other rows are read in place. None is what fits in the memory budget, or no tier without a budget.
    If the graph is in host memory, the tier is on the CUDA devices that train. Results do not depend on it."""
    score: Annotated[str, ADVANCED, _BATCHES, _SCORES, FREE, _SAMPLED, _TIERED] = "vip"
    """Score that chooses hot vertices: 'degree', 'rpr' (reverse PageRank), 'wrpr' (the same from the training vertices) or 'vip' (the
    probability that a mini-batch reads the vertex). Results do not depend on it."""
    cache: Annotated[str, ADVANCED, _BATCHES, _CACHES, FREE, _SAMPLED, _TIERED] = "look-ahead"
    """What the hot tier keeps: 'static' (rows of the highest score) or 'look-ahead' (rows that the next batches_ahead mini-batches read).
    Results do not depend on it."""
    memory: Annotated[str | None, _RESOURCES, _SIZES] = None
    """Memory budget for an epoch's vertex and edge tensors, as '2GiB'. The model is streamed by intervals within the budget, with the
    results of a run in memory. With sample, evaluation is streamed within half of the budget; the hot tier and the mini-batches
    prepared ahead stay within the budget as well. None trains in memory if everything fits, else within the free memory."""
    spill: Annotated[str | None, _RESOURCES, _FOLDERS, FREE] = None
    """Folder for blocks of a streamed model that are not in memory, in unnamed files. None is the run folder, or else the system's
    temporary folder; with a CUDA device, None is host memory."""
    profile: Annotated[bool, _RUN, ADVANCED, FREE, Needs(("memory", "devices"), "--memory 2GiB")] = False
    """Write profile.json and profile.png into the run folder: the steps and copies of the last streamed epoch, as planned and as executed,
    as a trace in Chrome's format and as a picture. With devices, profile.json has the stages, trainers and decisions of the last epoch."""
    monitor: Annotated[str | None, _EVALUATION, Metavar("SPLIT/METRIC")] = None
    """Metric for early stopping and the best weights: 'val/accuracy', 'val/loss', 'val/r2', 'train/loss', ... None is 'val/accuracy'
    ('val/loss' for multi-label and regression, 'val/mrr' for links), or 'train/loss' without a val split."""
    patience: Annotated[int | None, _EVALUATION, _COUNTS, FREE] = None
    "Number of epochs without improvement of the monitored metric before training stops; None never stops early."
    weights: Annotated[str | None, ADVANCED, _EVALUATION, _ENDS] = None
    "Final weights of a run: 'best' by the monitor, or 'last'. None is 'best' if val is monitored, else 'last'."
    eval_every: Annotated[int, _EVALUATION, _COUNTS] = 1
    """Evaluate train and val every N epochs. The last epoch is always evaluated; unless N divides the number of epochs, this is only
    reported, and affects neither the best epoch nor the scheduler."""
    checkpoint_every: Annotated[int, _RUN, _COUNTS, FREE] = 10
    """Maximum number of epochs between checkpoints, if there is a run folder. Long epochs write more of them, and the last epoch always
    writes one."""
    keep_checkpoints: Annotated[int, _RUN, ADVANCED, _COUNTS, FREE] = 2
    "Number of latest checkpoints to keep, at least 1."
    tensorboard: Annotated[bool, _RUN, FREE] = False
    "Write TensorBoard events into the run folder (extra 'tensorboard')."

    def __post_init__(self) -> None:
        check_fields(self)
        default("training names")(self)
        require_effect(self)
        if "," in self.device:
            self._check_devices()
        if self.device == "cpu":
            refuse(self, ["sample_on"], "device is 'cpu'")
        if self.devices is not None and self.device not in ("auto", "cpu"):
            raise options_of(TrainConfig)["device"].refused(self.device, "'auto' or 'cpu' when devices is set")
        if self.devices is not None and self.computes_on == "cpu":
            refuse(self, ["sample_on"], "devices is set without a CUDA device", "name one in devices")
        if self.sample is not None and not self.trains_together:
            refuse(self, ["profile"], "sample is set: a streamed epoch, or one of several trainers, is profiled")
        if self.task is not None:
            self.require_effect(of_graphs=self.task.startswith(OF_GRAPHS), of_links=self.task == LINK_TASK)
        if self.spill is not None:
            # A run may be resumed or reopened from another folder.
            object.__setattr__(self, "spill", os.path.abspath(self.spill))

    def _check_devices(self) -> None:
        """Refuse several devices where they do not share a streamed epoch."""
        option = options_of(TrainConfig)["device"]
        if self.sample is not None and self.devices is None:
            hint = "Let them train as trainers (devices, --devices cuda:0,cuda:1), or leave sample out."
            raise option.refused(self.device, "one device when sample is set", hint)
        if self.memory is None:
            hint = "Set memory (--memory 8GiB), the budget of each device, or name one device."
            raise option.refused(self.device, "one device when memory is not set", hint)

    @property
    def trains_together(self) -> bool:
        """Whether several trainers share each mini-batch. A CUDA device that ``devices`` names alone trains as without."""
        return self.devices is not None and re.fullmatch(r"cuda(:\d+)?", self.devices.strip()) is None

    @property
    def computes_on(self) -> str:
        """Name of the device with the weights that are trained: ``device``, or of ``devices`` the first CUDA device, else the processor."""
        if self.devices is None:
            return self.device
        found = re.search(r"cuda(?::(\d+))?", "cuda" if self.devices.strip() == "auto" else self.devices)
        return f"cuda:{int(found[1] or 0)}" if found else "cpu"

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of ``memory``."""
        return None if self.memory is None else parse_bytes(self.memory, where="TrainConfig.memory")

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
        """Refuse options that have no effect on a task, on whole graphs or on links. A configuration that names its task has been checked."""
        if of_links:
            if self.sample is None:
                names = ("batches_ahead", "keep_positives", "profile")
                refuse(self, names, "links are learned and sample is not set", _SET_SAMPLE)
            return
        learn_links = f"learn links (--task {LINK_TASK})"
        refuse(self, ["negatives", "keep_positives"], "links are not learned", learn_links)
        if of_graphs:
            refuse(self, ["sample", "memory"], "whole graphs are learned, which are trained in batches of graphs")
        elif self.sample is None:
            refuse(self, ["batches_ahead", "batch_size"], "sample is not set", _SET_SAMPLE)

    def to_json(self) -> dict[str, Any]:
        """Every field, as values that JSON holds and that make the same configuration again."""
        return asdict(self)


@options("train", "Devices and memory")
@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Everything that decides a run."""

    data: DataConfig
    "The graph."
    model: ModelConfig
    "The model."
    train: TrainConfig
    "Length, optimizer, device, checkpoints and logs of the training."
    engine: Annotated[str, ADVANCED, one_of("compiled", "lean", "naive")] = "compiled"
    """How layers are executed. compiled: hoisted, commuted and fused ('sagann plan' shows how); lean: the same with less memory and more
    time; naive: plain PyTorch, with edge tensors."""
    workers: Annotated[int, _THREADS] = 1
    """Number of processes on this machine that train together, each holding part of the graph. Under torchrun, its number of processes is
    used instead."""
    worker_timeout: Annotated[float, ADVANCED, _WAITS] = 60.0
    "Seconds that a worker waits for another one during computation before it fails."
    balance: Annotated[str, ADVANCED, one_of("edges", "vertices", "cost")] = "edges"
    """What workers' parts have equal amounts of: edges, vertices, or cost, the seconds that a cost model predicts from the run's epochs; in
    training, vertices then move between workers if that pays off."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.train.memory is not None:
            refuse(self, ["engine"], "memory is set: only the compiled engine streams", "leave memory out")

    def to_toml(self) -> str:
        """The settings as a TOML file, every one written out."""
        found = {section: asdict(getattr(self, section)) for section in ("data", "model", "train")}
        found["train"] |= {name: getattr(self, name) for name in options_of(RunConfig)}
        return format_toml(found)


SETTINGS: Mapping[str, Option] = {
    name: option
    for kind in (DataConfig, ModelConfig, TrainConfig, RunConfig)
    for name, option in options_of(kind).items()
}
"Every option of a run by its name."
WORKERS = tuple(SETTINGS[name] for name in ("workers", "worker_timeout", "balance"))
"Options by which several processes divide a graph; those after the first have no effect on one process."
FREE_OPTIONS = tuple(name for name, option in options_of(TrainConfig).items() if FREE in option.marks)
"""Training options that a resume may change: none of them changes the numbers of an epoch, but for rounding, and for the masks of
dropout where other devices train."""
