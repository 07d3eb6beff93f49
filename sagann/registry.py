"""Names that are imported when they are first used: those of a package, and defaults that lower packages take from higher ones.

A default is a name, "module:attribute". The lower package may not import the higher one, and imports the object when it first needs it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from typing import Any

DEFAULTS: dict[str, str] = {}
"""Names by purpose. ``"engine"``: the class of the engine that runs layers unless another engine is set. ``"progress"``: a function
without arguments that gives the reporter of a Trainer's progress, or None where nobody watches.
``"model names"`` and ``"training names"``: functions that check the names in a ModelConfig and a TrainConfig that only registries know."""


def default(purpose: str) -> Any:
    """Import the default object for a purpose."""
    module, name = DEFAULTS[purpose].split(":")
    return getattr(importlib.import_module(module), name)


def import_lazily(package: str, names: Mapping[str, str], *, modules: Collection[str] = ()) -> list[str]:
    """Have the public names of a package imported from its modules when they are first used, and return them for ``__all__``.

    A name that is also that of its module must be imported eagerly: the module itself takes that place when it is loaded.

    Args:
        package: the package that calls this, ``__name__``.
        names: by the name of a module of the package, the names that it has, with spaces between them.
        modules: names of modules that are attributes of the package before they are imported.
    """
    homes = {name: f"{package}.{home}" for home, listed in names.items() for name in listed.split()}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        namespace[name] = value = getattr(importlib.import_module(homes[name]), name)
        return value

    namespace["__getattr__"], namespace["__dir__"] = get, lambda: sorted({*namespace, *homes, *modules})
    return [*homes]
