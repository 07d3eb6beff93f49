"""Options of the zoo's models that the named model does not read. They are accepted, and said to have no effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType

from sagann.nn.zoo import ATTENTION, MODELS, ModelConfig

_READ_BY: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "heads": tuple(ATTENTION),
        "out_heads": tuple(ATTENTION),
        "attention_dropout": tuple(ATTENTION),
        "negative_slope": ("gat", "gatv2"),
        "teleport": ("appnp",),
        "linear_shortcut": ("residual-gcn",),
    }
)
"Models that read an option, of each option that few models read."


def options_without_effect(config: ModelConfig, *, of_graphs: bool = False) -> str:
    """A sentence about the options that differ from their defaults and that nothing reads; empty where there are none.

    A decoder that nothing reads is refused when the model is built.

    Args:
        config: the model.
        of_graphs: whether whole graphs are learned.
    Example:
        >>> options_without_effect(ModelConfig(model="gcn", heads=4))
        'heads = 4 has no effect on gcn: gat, gatv2 and transformer read it.'
        >>> options_without_effect(ModelConfig(model="gat", heads=4))
        ''
        >>> options_without_effect(ModelConfig(pool="max"))
        'pool = max has no effect here: it is read where whole graphs are learned.'
    """
    defaults = {each.name: each.default for each in fields(config)}
    said = []
    for name, models in _READ_BY.items():
        value = getattr(config, name)
        if config.model in models or value == defaults[name]:
            continue
        *others, last = models
        readers = f"{', '.join(others)} and {last} read it" if others else f"{last} reads it"
        if config.model not in MODELS:
            readers = f"options of your own model are given by --model-option {name}=VALUE, or model_options"
        said.append(f"{name} = {value} has no effect on {config.model}: {readers}.")
    if not of_graphs and config.pool != defaults["pool"]:
        said.append(f"pool = {config.pool} has no effect here: it is read where whole graphs are learned.")
    return " ".join(said)
