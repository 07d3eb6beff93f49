"""The files beside a model file that it imports: which ones they are, and how they are found while it runs.

They are found by reading the imports, before anything is executed. So the content of all of them can say whether a run is continued
with the same model. Nothing else in the folder can be imported.
"""

from __future__ import annotations

import ast
import importlib
import os
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from sagann.errors import InputError
from sagann.storage.regular_file import read_file

_MOST_FILES = 1000


def imported_files(path: Path) -> list[Path]:
    """The files in the folder of a model file that it imports, and that these import, in alphabetical order.

    A module of Python's own library is never taken from the folder. Modules that are imported by names made at run time are not found.

    Raises:
        InputError: a file belongs to another user than the model file does, or there are too many.
    """
    folder, found, ahead = path.parent, dict[Path, None](), [path]
    owners = {0, os.geteuid(), path.stat().st_uid}
    while ahead:
        importer = ahead.pop()
        for each in _imports(importer, folder):
            # A model file may have the name of a package that it imports.
            if each in found or each == importer:
                continue
            _require_trusted(each, owners, path)
            found[each] = None
            ahead.append(each)
        if len(found) > _MOST_FILES:
            raise InputError(
                "a model file imports too many files beside it",
                value=f"more than {_MOST_FILES}",
                where=f"'{path}'",
                fix="Install them as a package, or name its folder in PYTHONPATH.",
            )
    return sorted(found)


@contextmanager
def importable(files: Sequence[Path], folder: Path) -> Iterator[None]:
    """Let these files of a folder be imported, before installed modules of the same names.

    Afterwards modules of these names that the program had imported itself are there again. Others stay, for code that imports them
    when it runs; the next model file imports its own.
    """
    names = {each.relative_to(folder).parts[0].removesuffix(".py") for each in files}
    before = _loaded_as(names)
    for name in before:
        del sys.modules[name]
    finder = _Finder(names, folder)
    sys.meta_path.insert(0, finder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        of_program = {name: module for name, module in before.items() if _of_model_files.get(name) is not module}
        for name, module in _loaded_as(names).items():
            if _top(name) in map(_top, of_program):
                del sys.modules[name]
            else:
                _of_model_files[name] = module
        sys.modules.update(of_program)


_of_model_files: dict[str, ModuleType] = {}
"Modules in ``sys.modules`` that a model file imported."


class _Finder(MetaPathFinder):
    """Finds modules of some names in a folder. Their submodules are found by Python."""

    def __init__(self, names: Collection[str], folder: Path) -> None:
        self._names, self._folder = names, folder

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Where a module is; None for any other."""
        return PathFinder.find_spec(fullname, [str(self._folder)]) if fullname in self._names else None


def _loaded_as(names: Collection[str]) -> dict[str, ModuleType]:
    """Modules of these names that are loaded, and their submodules."""
    return {name: module for name, module in sys.modules.items() if _top(name) in names}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    """Files of a folder that a file in it imports."""
    try:
        tree = ast.parse(read_file(file, error=InputError))
    except (SyntaxError, ValueError, RecursionError):
        # Python says what is wrong when the file is executed.
        return
    package = file.relative_to(folder).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name.split("."), folder)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            base = [*package[: len(package) + 1 - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files_of([*base, alias.name], folder)


def _files_of(parts: Sequence[str], folder: Path) -> Iterator[Path]:
    """Files of a module with this dotted name and of the packages around it, as far as they lie in a folder."""
    if parts[0] in sys.stdlib_module_names:
        return
    for end in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:end])
        for candidate in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if candidate.is_file():
                yield candidate
                break


def _require_trusted(file: Path, owners: Collection[int], model_file: Path) -> None:
    """Refuse a file that somebody else may have put beside the model file."""
    found = file.stat()
    others_write = stat.S_IWOTH & found.st_mode & ~model_file.stat().st_mode
    if found.st_uid not in owners or others_write:
        raise InputError(
            "a model file imports a file that other users may have written",
            value=f"'{file}', of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            where=f"'{model_file}'",
            fix="Keep the files of a model in a folder of your own.",
        )
