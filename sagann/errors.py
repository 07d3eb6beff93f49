"""Errors a person can act on: what failed, the value and the limit, which object, what to do.

Everything sagann refuses on purpose is a :class:`SagannError`; the command line turns it into exit code 2
and one message. Any other exception is our own fault (exit code 1).
"""

from __future__ import annotations

import difflib
import linecache
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path


class SagannError(Exception):
    """An error in two parts.

    Args:
        message: what is wrong, with the value found, the limit where there is one, and the object concerned (a file and row, a layer,
            an argument); without a full stop.
        hint: what to do about it, as a sentence.

    Example:
        >>> raise InputError("batch is empty: 0 seeds, at least 1 is needed (in seeds)", hint="Pass seeds.")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: batch is empty: 0 seeds, at least 1 is needed (in seeds). Pass seeds.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}. {hint}")

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self.message, hint=self.hint), ()


class InputError(SagannError, ValueError):
    """An argument, a graph or a configuration that cannot be used as it is."""


class DatasetError(InputError):
    """A file or folder with data that is missing, foreign, truncated or wrong; names the file and the row."""


class LayerError(SagannError, TypeError):
    """A layer whose functions break the programming model; names the operator and the user's line."""


class CheckpointError(InputError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class WorkerError(SagannError, RuntimeError):
    """A worker that does not answer; names its rank, and what the others were doing."""


class TrainerError(SagannError, RuntimeError):
    """A trainer in a process of its own that is gone, or that has failed; names it, the iteration, and what it did."""


class MissingDependencyError(SagannError, ImportError):
    """A feature that needs a package of one of the extras."""

    def __init__(self, package: str, *, extra: str, feature: str) -> None:
        self._package, self._extra, self._feature = package, extra, feature
        super().__init__(
            f"package not installed: {package} cannot be imported (in {feature})",
            hint=f"Install it with: pip install 'sagann[{extra}]'.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), self._package, extra=self._extra, feature=self._feature), ()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came; the command line raises it.

    Where a KeyboardInterrupt itself leaves an ``exec`` of a string, Python ends by SIGINT, whatever the exit code.
    """


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C or SIGTERM. A class that a user's model derives from KeyboardInterrupt is not."""
    return type(error) in (KeyboardInterrupt, Interrupted)


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not empty; its class where it has no text."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def in_one_line(error: BaseException) -> str:
    """The class of an error and the first line of its text."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)}" if str(error).strip() else kind


def users_line() -> str:
    """The innermost line of the stack that is the user's: "file:line: code"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_not_the_users()):
        frame = frame.f_back
    return _format_line(frame.f_code.co_filename, frame.f_lineno)


def line_of_error(error: BaseException, otherwise: str = "the layer") -> str:
    """The innermost line of an error that is the user's, or PyG's where all are; ``otherwise`` where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_not_the_users())
    ]
    frames = [frame for frame in frames if f"{os.sep}torch_geometric{os.sep}" not in frame.filename] or frames
    return _format_line(frames[-1].filename, frames[-1].lineno or 0) if frames else otherwise


@cache
def _not_the_users() -> tuple[str, ...]:
    """Folders of PyTorch, which may not be imported here, and of our packages that call functions of the user's."""
    torch = find_spec("torch")
    assert torch
    assert torch.origin
    ours = (Path(__file__).parent / name for name in ("saga", "compiler", "kernels", "interop", "runtime"))
    # With a separator: torch_geometric is none of these.
    return tuple(f"{folder}{os.sep}" for folder in (Path(torch.origin).parent, *ours))


@lru_cache(maxsize=1024)
def _format_line(filename: str, lineno: int) -> str:
    source = linecache.getline(filename, lineno).strip()
    return f"{Path(filename).name}:{lineno}: {source[:100]}"


def printable(line: str) -> str:
    """The line with an escape for each character that is not shown.

    Names of files, and texts of foreign ones, may have line breaks, codes that a terminal obeys, and bytes that are not UTF-8.

    Example:
        >>> printable("a\\x1b[2Jb")
        'a\\\\x1b[2Jb'
    """
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def listed(names: Sequence[str], most: int = 10) -> str:
    """At most so many names, and the number of the others.

    Example:
        >>> listed(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shown(value: object, most: int = 80) -> str:
    """The value as Python writes it, in at most so many characters.

    Example:
        >>> shown("a" * 100, 12), shown(1 << 100_000)
        ("'aaaaaaaa...", 'a value with an integer of thousands of digits')
    """
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write out such integers.
        return "a value with an integer of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def require_type(
    value: object, expected: type | tuple[type, ...], *, where: str, hint: str, optional: bool = False
) -> None:
    """Refuse an argument of a foreign type; a bool is no int. ``hint`` says in a sentence what to pass instead.

    Example:
        >>> require_type([1, 2], dict, where="Graph.splits", hint="Pass a mapping.")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: argument has the wrong type: a list, expected dict (in Graph.splits). Pass a mapping.
    """
    kinds = expected if isinstance(expected, tuple) else (expected,)
    fits = isinstance(value, kinds) and not (isinstance(value, bool) and int in kinds)
    if fits or (optional and value is None):
        return
    found = "None" if value is None else f"a {type(value).__name__}"
    names = " or ".join(kind.__name__ for kind in kinds) + (" or None" if optional else "")
    raise InputError(f"argument has the wrong type: {found}, expected {names} (in {where})", hint=hint)


def require_choice(value: object, choices: Iterable[object], *, what: str, where: str) -> None:
    """Refuse a value that is none of the choices.

    Example:
        >>> require_choice("rows", ["column", "row"], what="unknown order", where="order")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: unknown order: 'rows', expected one of column, row (in order). Did you mean 'row'? Choose one of these.
    """
    known = list(choices)
    if value not in known:
        names = ", ".join(map(str, known))
        hint = f"{did_you_mean(value, known)}Choose one of these."
        raise InputError(f"{what}: {shown(value)}, expected one of {names} (in {where})", hint=hint)


_CALLED_ELSEWHERE = """
batch_size: bs; by: order method; checkpoint_every: save_every; clip_norm: clip grad_clip
max_grad_norm; data: dataset; dataset: data; device: gpu gpu_id cuda cpu; epochs: num_epochs iterations; dst: to; fanouts: sample num_neighbors;
features: x feat; hidden: hidden_dim hidden_size hidden_channels n_hid dim width; labels: y; layers: num_layers depth; lr: learning_rate;
model: arch net gnn conv; model_options: attention_dropout linear_shortcut negative_slope out_heads teleport; monitor: metric; negatives: neg_ratio neg_sampling_ratio negative_sampling; norm: bn batch_norm layer_norm; no_undirected: directed; num_vertices: num_nodes;
optimizer: opt; optimizer_options: momentum betas nesterov; out: o output save save_dir log_dir; overwrite: force f; patience: early_stop
early_stopping; pool: readout; sample: fanout num_neighbors neighbors; sampling_threads: num_workers; scheduler_options: step_size gamma t_max;
seed: random_seed random_state manual_seed; separator: sep delimiter delim; split: train_ratio val_ratio train_size; src: from; symmetrise: undirected
to_undirected; threads: num_threads n_jobs; undirected: symmetrise symmetric to_undirected; vertices: nodes num_nodes; weight_decay: wd l2;
workers: num_gpus world_size nproc nproc_per_node;
check: verify validate; evaluate: test report; import: convert; info: show describe stats; predict: infer inference; train: fit run;
bce: bce_with_logits binary_cross_entropy; cross_entropy: ce nll softmax xent; mse: l2; classification: multiclass binary;
link-prediction: link lp;
accuracy: acc; hits_10: hits; micro_f1: f1; roc_auc: auc auroc;
csv: txt; cuda: gpu; pyg: torch pt; gated-gcn: res_gated_graph; gcn: gnn; ggnn: gated_graph; sage: graphsage; CosineAnnealingLR: cosine;
ReduceLROnPlateau: plateau
"""
"For each name here, the names that other programs have for it: options and fields, commands, losses and tasks, metrics, others."


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Offer the nearest known name, as a question with a space after it; an empty text where none is near.

    Example:
        >>> did_you_mean("Sgae", ["gcn", "sage"]), did_you_mean("transformer", ["gcn", "sage"])
        ("Did you mean 'sage'? ", '')
    """
    near = nearest(name, known)
    return f"Did you mean '{near}'? " if near else ""


def nearest(name: object, known: Iterable[object]) -> str:
    """The known name that is nearest to another one, as :func:`did_you_mean` offers it; an empty text where none is near.

    Example:
        >>> nearest("--learning_rate", ["--link-rate", "--lr"])
        '--lr'
    """
    if not isinstance(name, str) or not name:
        return ""
    # Of names that are the same, the first one stands for all.
    by_key: dict[str, str] = {}
    for each in map(str, known):
        by_key.setdefault(_key(each), each)
    key = _key(name)
    near = (
        [each for each in (key, *_HERE.get(key, ())) if each in by_key]
        # Letters that changed places are the likeliest slip.
        or [each for each in by_key if sorted(each) == sorted(key)]
        or difflib.get_close_matches(key, by_key, n=1, cutoff=0.65)
    )
    return by_key[near[0]] if near else ""


def closest(name: object, known: Iterable[object]) -> str:
    """Advice for an unknown name: the nearest known name, and all known names."""
    names = list(known)
    return f"{did_you_mean(name, names)}Known: {', '.join(map(str, names))}."


def _key(name: str) -> str:
    """What spellings of a name have in common: GATConv is gat, and --batch-size is batch_size."""
    key = "".join(filter(str.isalnum, name.lower()))
    for suffix in ("loss", "conv", "s"):
        key = key.removesuffix(suffix) or key
    return key


_HERE: dict[str, list[str]] = {}
"Keys of the names here by the key of a name elsewhere."
for _here, _words in (each.split(":") for each in _CALLED_ELSEWHERE.split(";")):
    for _word in _words.split():
        _HERE.setdefault(_key(_word), []).append(_key(_here))
