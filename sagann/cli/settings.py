"""Every setting of a run: the one table behind the options of ``sagann train`` and the sections of a TOML file.

The fields of ModelConfig and TrainConfig stand here a second time, because importing those takes seconds and
``--help`` must not; a test holds names and defaults of the two together.
"""

from __future__ import annotations

from sagann.cli.setting import Setting

SECTIONS = ("data", "model", "train")

# More layers than this take minutes per epoch, whatever their width and the graph.
_MOST_LAYERS = 1000
# Beyond, sizes of tensors no longer fit 64 bits.
_MOST_UNITS = 2**31 - 1

_DATA = "Data"
_MODEL = "Model"
_GAT = "Model: gat, residual-gcn"
_OPTIMISE = "Optimisation"
_STOP = "Evaluation and early stopping"
_RUN = "Device, checkpoints, logs"

DATA_SETTINGS = (
    Setting(
        section="data",
        name="data",
        kind="text",
        panel=_DATA,
        metavar="PATH|NAME",
        help="A dataset folder, an .npz file, or the name of an embedded graph (demo).",
    ),
    Setting(
        section="data",
        name="split",
        kind="text",
        panel=_DATA,
        optional=True,
        metavar="SPLIT",
        default="the dataset's own, else random:0.6,0.2",
        help="random:TRAIN,VAL (shares), per-class:TRAIN,VAL (vertices per class), planetoid:TRAIN,VAL,TEST "
        "(TRAIN per class), or graphs:TRAIN/VAL/TEST (names or positions, comma-separated). Drawn with --seed.",
    ),
    Setting(
        section="data",
        name="undirected",
        kind="flag",
        panel=_DATA,
        default="no",
        help="Add the reverse of every edge and merge multi-edges.",
    ),
    Setting(
        section="data",
        name="inverse_edges",
        kind="flag",
        panel=_DATA,
        default="no",
        help="Typed graphs: give every edge a reverse of a type of its own.",
    ),
    Setting(
        section="data",
        name="normalise_features",
        kind="flag",
        panel=_DATA,
        default="no",
        help="Divide each vertex's features by their sum.",
    ),
)

MODEL_SETTINGS = (
    Setting(
        section="model",
        name="model",
        kind="text",
        panel=_MODEL,
        default="gcn",
        metavar="NAME|FILE.py:CLASS",
        help="commnet, gcn, maxpool-gcn, gated-gcn, ggnn, gin, gat, sage, residual-gcn, "
        "or your own layer or model as path/to/file.py:ClassName.",
    ),
    Setting(
        section="model",
        name="layers",
        kind="integer",
        panel=_MODEL,
        default="2",
        largest=_MOST_LAYERS,
        help="Number of layers; ggnn: steps with shared parameters.",
    ),
    Setting(
        section="model",
        name="hidden",
        kind="integer",
        panel=_MODEL,
        default="128",
        largest=_MOST_UNITS,
        help="Width of the layers between; gat: of all heads together.",
    ),
    Setting(
        section="model",
        name="dropout",
        kind="number",
        panel=_MODEL,
        default="0.5",
        help="Probability of dropping an input of a layer.",
    ),
    Setting(
        section="model",
        name="layer_norm",
        kind="flag",
        panel=_MODEL,
        default="no",
        help="A LayerNorm after every layer but the last.",
    ),
    Setting(
        section="model",
        name="encoder",
        kind="text",
        panel=_MODEL,
        default="auto",
        metavar="auto|none|linear|embedding",
        help="What stands before the first layer. auto: embedding without features, linear for ggnn, else none.",
    ),
    Setting(
        section="model",
        name="heads",
        kind="integer",
        panel=_GAT,
        default="8",
        largest=_MOST_UNITS,
        help="gat: heads of all layers but the last.",
    ),
    Setting(
        section="model",
        name="out_heads",
        kind="integer",
        panel=_GAT,
        default="1",
        largest=_MOST_UNITS,
        help="gat: heads of the last layer, which are averaged.",
    ),
    Setting(
        section="model",
        name="attention_dropout",
        kind="number",
        panel=_GAT,
        default="0.0",
        help="gat: probability of dropping an attention coefficient.",
    ),
    Setting(
        section="model",
        name="linear_shortcut",
        kind="flag",
        panel=_GAT,
        default="no",
        help="residual-gcn: learn the shortcut even where the identity would fit.",
    ),
)

TRAIN_SETTINGS = (
    Setting(
        section="train",
        name="epochs",
        kind="integer",
        panel=_OPTIMISE,
        default="200",
        help="Passes over the training vertices.",
    ),
    Setting(
        section="train",
        name="optimizer",
        kind="text",
        panel=_OPTIMISE,
        default="Adam",
        metavar="NAME",
        help="A class of torch.optim.",
    ),
    Setting(section="train", name="lr", kind="number", panel=_OPTIMISE, default="0.01", help="Learning rate."),
    Setting(
        section="train",
        name="weight_decay",
        kind="number",
        panel=_OPTIMISE,
        optional=True,
        default="0.0005",
        help="L2 penalty (decoupled in AdamW).",
    ),
    Setting(
        section="train",
        name="decay",
        kind="text",
        panel=_OPTIMISE,
        default="all",
        metavar="all|first-layer|matrices",
        help="Which parameters the weight decay is for.",
    ),
    Setting(
        section="train",
        name="optimizer_options",
        kind="options",
        panel=_OPTIMISE,
        metavar="KEY=VALUE",
        help="A further argument of the optimizer, as momentum=0.9; may be repeated.",
    ),
    Setting(
        section="train",
        name="scheduler",
        kind="text",
        panel=_OPTIMISE,
        optional=True,
        default="none",
        metavar="NAME",
        help="A class of torch.optim.lr_scheduler, stepped once per epoch.",
    ),
    Setting(
        section="train",
        name="scheduler_options",
        kind="options",
        panel=_OPTIMISE,
        metavar="KEY=VALUE",
        help="An argument of the scheduler, as step_size=50; may be repeated.",
    ),
    Setting(
        section="train",
        name="clip_norm",
        kind="number",
        panel=_OPTIMISE,
        optional=True,
        default="none",
        help="Largest norm of all gradients together.",
    ),
    Setting(
        section="train",
        name="seed",
        kind="integer",
        panel=_OPTIMISE,
        default="0",
        help="Seed of the weights, of dropout and of the split.",
    ),
    Setting(
        section="train",
        name="monitor",
        kind="text",
        panel=_STOP,
        optional=True,
        default="val/accuracy, val/micro_f1 or train/loss",
        metavar="SPLIT/METRIC",
        help="What early stopping and the best weights go by.",
    ),
    Setting(
        section="train",
        name="patience",
        kind="integer",
        panel=_STOP,
        optional=True,
        default="none",
        help="Stop after so many epochs without improvement.",
    ),
    Setting(
        section="train",
        name="weights",
        kind="text",
        panel=_STOP,
        optional=True,
        default="best with a val split, else last",
        metavar="best|last",
        help="The weights that the run ends with.",
    ),
    Setting(
        section="train",
        name="eval_every",
        kind="integer",
        panel=_STOP,
        default="1",
        help="Epochs between evaluations.",
    ),
    Setting(
        section="train",
        name="engine",
        kind="text",
        panel=_RUN,
        default="compiled",
        metavar="compiled|lean|naive",
        help="How layers are executed. compiled: hoisted, commuted and fused (sagann plan shows how); lean: the "
        "same in as little memory as can be, at some cost in speed; naive: plain PyTorch, one row per edge.",
    ),
    Setting(
        section="train",
        name="device",
        kind="text",
        panel=_RUN,
        default="auto",
        metavar="auto|cpu|cuda|cuda:N",
        help="Where to compute; auto is cuda where there is one.",
    ),
    Setting(
        section="train",
        name="memory",
        kind="text",
        panel=_RUN,
        optional=True,
        metavar="SIZE",
        default="what is free",
        help="What an epoch's tensors of vertices and edges may take, as 2GiB: the model is streamed by intervals, with "
        "the same numbers. Unset, it is streamed only where memory would not hold the run.",
    ),
    Setting(
        section="train",
        name="spill",
        kind="text",
        panel=_RUN,
        optional=True,
        metavar="FOLDER",
        default="in the run folder",
        help="Where a streamed model keeps what memory does not, on a disk with room.",
    ),
    Setting(
        section="train",
        name="profile",
        kind="flag",
        panel=_RUN,
        default="no",
        help="With --memory: write RUN_DIR/profile.json (for Perfetto) and profile.png: when each step and copy of the last "
        "epoch ran, and was to be expected.",
    ),
    Setting(
        section="train",
        name="deterministic",
        kind="flag",
        panel=_RUN,
        default="yes",
        help="Refuse operators that give other bits each time.",
    ),
    Setting(
        section="train",
        name="checkpoint_every",
        kind="integer",
        panel=_RUN,
        default="10",
        help="Epochs between checkpoints.",
    ),
    Setting(
        section="train",
        name="keep_checkpoints",
        kind="integer",
        panel=_RUN,
        default="2",
        help="Number of newest checkpoints to keep.",
    ),
    Setting(
        section="train",
        name="tensorboard",
        kind="flag",
        panel=_RUN,
        default="no",
        help="Write TensorBoard events into the run folder (extra 'tensorboard').",
    ),
)

SETTINGS = DATA_SETTINGS + MODEL_SETTINGS + TRAIN_SETTINGS
ENGINES = ("compiled", "lean", "naive")
