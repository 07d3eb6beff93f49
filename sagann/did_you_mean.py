"""Did you mean: the known name that is nearest to an unknown one, by its letters or because other programs call it so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
