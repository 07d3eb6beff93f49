"""The user's own layer or model, named as ``path/to/file.py:ClassName``.

The file is executed, as any Python program the user runs; it is never taken from a dataset or a checkpoint. It stands alone, so
that its content tells whether a run is continued with the same model: what it imports is installed, or on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from sagann.errors import InputError
from sagann.saga import SagaLayer
from sagann.storage.regular_file import require_file


def load_class(reference: str) -> type[nn.Module]:
    """Import the class that ``path/to/file.py:ClassName`` names.

    Raises:
        InputError: no such file or class, the file fails, or the class is no ``torch.nn.Module``.
    """
    filename, _, class_name = reference.rpartition(":")
    path = Path(filename)
    require_file(path, error=InputError)
    if not path.is_file():
        raise InputError(
            "model file not found", value=f"'{path}'", where=f"model '{reference}'", fix="Check the path."
        )
    spec = importlib.util.spec_from_file_location(f"sagann_user_{path.stem}", path)
    # The suffix .py always yields a loader.
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered, so that dataclasses and inspection of the source work in the user's file.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    # A file that calls sys.exit has not been loaded either.
    except (Exception, SystemExit) as error:
        raise InputError(
            "model file failed to run",
            value=f"{type(error).__name__}: {error}",
            where=f"'{path}'",
            fix="Run it with python to see the whole error; what lies beside it is found where PYTHONPATH names its folder."
            if isinstance(error, ModuleNotFoundError)
            else "Run it with python to see the whole error.",
        ) from error
    cls = getattr(module, class_name, None)
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        found = [
            name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
        ]
        raise InputError(
            "no such model in the file",
            value=f"'{class_name}'; modules there: {', '.join(found) or 'none'}",
            where=f"'{path}'",
            fix="Name a class derived from sagann.SagaLayer or torch.nn.Module.",
        )
    return cls


def layer_from_class(cls: Callable[..., SagaLayer], in_dim: int, out_dim: int) -> SagaLayer:
    """Make one layer of a stack: the class is called as ``cls(in_dim, out_dim)``."""
    name = getattr(cls, "__name__", repr(cls))
    try:
        inspect.signature(cls).bind(in_dim, out_dim)
    except TypeError as error:
        raise InputError(
            "the layer cannot be stacked",
            value=f"{name}{inspect.signature(cls)}: {error}",
            where=f"class {name}",
            fix="Give its __init__ the parameters (in_dim, out_dim).",
        ) from error
    return cls(in_dim, out_dim)


def module_from_class(cls: type[nn.Module], options: Mapping[str, object]) -> nn.Module:
    """Make a whole model: the class gets those of ``options`` that its ``__init__`` names.

    Raises:
        InputError: it wants something else.
    """
    parameters = inspect.signature(cls).parameters.values()
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.name not in options
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown:
        raise InputError(
            "the model wants arguments that are not offered",
            value=f"{', '.join(unknown)}; offered: {', '.join(options)}",
            where=f"class {cls.__name__}",
            fix="Give these parameters a default, or use the names offered.",
        )
    return cls(**{parameter.name: options[parameter.name] for parameter in parameters if parameter.name in options})
