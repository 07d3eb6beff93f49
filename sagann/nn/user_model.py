"""The user's own layer or model, named as ``path/to/file.py:ClassName``.

The file is executed as any Python program that the user runs. The user names the file in every command or call: a file that only
a dataset, a run folder or a configuration names is refused (:func:`require_named`). It may import files beside it, whose content counts
as its own when a run is continued.
"""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sagann.config import class_in_file
from sagann.constructor_options import check_options
from sagann.errors import InputError, in_one_line, is_interrupt
from sagann.saga import SagaLayer


def require_named(model: str, *, where: str, error: type[InputError]) -> None:
    """Refuse a model in a Python file that only another file (``where``) names: building the model would execute it."""
    if class_in_file(model) is not None:
        raise error(
            f"a model in a Python file is executed only where it is named again: '{model}' (in {where})",
            hint=f"If you trust that file, add --model {shlex.quote(model)}; in Python, pass model={model!r}.",
        )


def load_class(path: Path, class_name: str) -> type[nn.Module]:
    """Import a class of a user's file. A missing or failing file, or a class that is no ``nn.Module``, is an InputError."""
    if not path.is_file():
        raise InputError(f"model file not found: '{path}' (in model '{path}:{class_name}')", hint="Check the path.")
    name = f"sagann_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and the inspection of source code look a module up here.
    sys.modules[spec.name] = module
    try:
        with _importing_beside(path.absolute()):
            spec.loader.exec_module(module)
    except BaseException as error:
        if is_interrupt(error) or isinstance(error, InputError):
            raise
        # A file that calls sys.exit, or raises any other exception, has not been loaded.
        raise InputError(
            f"model file failed to run: {in_one_line(error)} (in '{path}')",
            hint="Run it with python to see the whole error.",
        ) from error
    modules = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nn.Module)
    }
    if class_name not in modules:
        raise InputError(
            f"no such model in the file: '{class_name}'; modules found: {', '.join(modules) or 'none'} (in '{path}')",
            hint="Name a class derived from sagann.SagaLayer or torch.nn.Module.",
        )
    return modules[class_name]


_imported: dict[Path, dict[str, ModuleType]] = {}
"The modules beside each model file that it has imported, by name."


def imported_files(path: Path) -> list[Path]:
    """The files in the folder of a model file that it imported when it was last loaded, in alphabetical order."""
    return sorted(Path(str(module.__file__)) for module in _imported.get(path.absolute(), {}).values())


def files_of_models() -> set[str]:
    """Absolute paths of all model files that were loaded, and of the files beside them that they imported."""
    return {str(file) for path in _imported for file in (path, *imported_files(path))}


@contextmanager
def _importing_beside(path: Path) -> Iterator[None]:
    """Let a model file import what lies beside it, where nothing installed has that name; what it imports later finds it too."""
    # Files may have changed, and those of another model may have the same names.
    for name, module in [each for modules in _imported.values() for each in modules.items()]:
        if sys.modules.get(name) is module:
            del sys.modules[name]
    folder = str(path.parent)
    sys.path[:] = [each for each in sys.path if each not in _folders]
    _folders[:] = [each for each in dict.fromkeys([folder, *_folders]) if each not in sys.path]
    sys.path += _folders
    before = set(sys.modules)
    try:
        yield
    finally:
        found = {name: sys.modules[name] for name in set(sys.modules) - before}
        _imported[path] = {name: module for name, module in found.items() if _is_beside(name, module, folder)}


_folders: list[str] = []
"Folders of model files, which are the last ones in ``sys.path``: that of the file that was loaded last comes first."


def _is_beside(name: str, module: ModuleType, folder: str) -> bool:
    """Whether a module lies in a folder, or in a package there."""
    top, file = (getattr(each, "__file__", None) for each in (sys.modules.get(name.partition(".")[0]), module))
    if not file or not top or name.startswith("sagann_user_"):
        return False
    return str(Path(top).parents[Path(top).name == "__init__.py"]) == folder


def layer_from_class(
    cls: type[Any], in_dim: int, out_dim: int, options: Mapping[str, object] | None = None
) -> SagaLayer:
    """Make one layer of a stack: ``cls(in_dim, out_dim, **options)``."""
    options = options or {}
    signature = inspect.signature(cls)
    dims = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD][:2]
    check_options(cls, options, taken=dims, where=f"class {cls.__name__}", what=_OPTIONS)
    try:
        signature.bind(in_dim, out_dim, **options)
    except TypeError as error:
        raise InputError(
            f"the layer cannot be stacked: {cls.__name__}{signature}: {error} (in class {cls.__name__})",
            hint="Give its __init__ the parameters (in_dim, out_dim), and others by --model-option or with a default.",
        ) from error
    return cls(in_dim, out_dim, **options)


def module_from_class(
    cls: type[nn.Module], offered: Mapping[str, object], options: Mapping[str, object] | None = None
) -> nn.Module:
    """Make a whole model: the class gets the options, and of what is offered what its ``__init__`` names."""
    options = options or {}
    signature = inspect.signature(cls)
    check_options(cls, options, taken=[*offered], where=f"class {cls.__name__}", what=_OPTIONS)
    given = {name: offered[name] for name in signature.parameters if name in offered} | dict(options)
    try:
        signature.bind(**given)
    except TypeError as error:
        raise InputError(
            f"the model wants arguments that are not offered: {error}; offered: {', '.join(offered)} (in class {cls.__name__})",
            hint="Give them by --model-option NAME=VALUE or model_options, give them a default, or use the names offered.",
        ) from error
    return cls(**given)


_OPTIONS = "model_options"
