"""The files beside a model file that it imports: which ones they are, and how they are found while it runs.

They are found by reading the imports, before anything is executed. So the content of all of them can say whether a run is continued
with the same model. Nothing else in the folder can be imported.
"""

from __future__ import annotations

import ast
import os
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from sagann.errors import InputError
from sagann.storage.regular_file import open_file, read_file

_MOST_FILES = 1000
_PACKAGE = "__init__.py"


def imported_files(path: Path) -> list[Path]:
    """The files in the folder of a model file that it imports, and that these import, in alphabetical order.

    A module that is installed, or Python's own, is never taken from the folder. Modules that are imported by names made at run time are not
    found, and neither are packages without a file ``__init__.py``.

    Raises:
        InputError: a file, or a folder of a package, belongs to another user than the model file does, or there are too many files.
    """
    folder, found, ahead = path.parent, dict[Path, None](), [path]
    trust = _Trust.of(path)
    while ahead:
        importer = ahead.pop()
        for each in _imports(importer, folder):
            # A model file may have the name of a package that it imports.
            if each in found or each == importer:
                continue
            for place in (each, *each.parents[: len(each.relative_to(folder).parts) - 1]):
                trust.require(place, place.stat())
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


@dataclass(frozen=True, slots=True)
class _Trust:
    """Who may have written the files beside a model file."""

    model_file: Path
    owners: frozenset[int]
    "Users whose files may be imported: root, this user, and the owner of the model file."
    may_all_write: bool
    "Whether everybody may write to the model file, too."

    @classmethod
    def of(cls, model_file: Path) -> _Trust:
        found = model_file.stat()
        return cls(model_file, frozenset((0, os.geteuid(), found.st_uid)), bool(found.st_mode & stat.S_IWOTH))

    def require(self, file: Path, found: os.stat_result) -> None:
        """Refuse a file, or a folder, that somebody else may have written."""
        others_write = found.st_mode & stat.S_IWOTH and not self.may_all_write
        if found.st_uid not in self.owners or others_write:
            raise InputError(
                "a model file imports a file that other users may have written",
                value=f"'{file}', of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
                where=f"'{self.model_file}'",
                fix="Keep the files of a model in a folder of your own.",
            )


class SourceLoader(SourceFileLoader):
    """Loads a module from the text of its file, never from compiled code beside it, which somebody else may have written."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file's text."""
        return self.source_to_code(self.get_data(self.path), self.path)


class _BesideLoader(SourceLoader):
    """Loads a file beside a model file. Who may have written it is asked of the file that is open, which nobody can exchange."""

    def __init__(self, fullname: str, path: str, trust: _Trust) -> None:
        super().__init__(fullname, path)
        self._trust = trust

    def get_data(self, path: str) -> bytes:
        """The content of the file."""
        with open_file(path, error=InputError) as file:
            self._trust.require(Path(path), os.fstat(file.fileno()))
            return file.read()


@contextmanager
def importable(files: Sequence[Path], model_file: Path) -> Iterator[None]:
    """Let these files in the folder of a model file be imported, and nothing else in it.

    Afterwards modules of the same names that the program had imported itself are there again. Others stay, and may be imported later, until
    the next model file is loaded.
    """
    finder = _Finder({_module_name(each, model_file.parent): each for each in files}, _Trust.of(model_file))
    before = _loaded_as(finder.names)
    for name in before:
        del sys.modules[name]
    sys.meta_path[:] = [finder, *(each for each in sys.meta_path if not isinstance(each, _Finder))]
    try:
        yield
    finally:
        # Code that imports when it runs finds the files after all that is installed.
        sys.meta_path.remove(finder)
        sys.meta_path.append(finder)
        of_program = {name: module for name, module in before.items() if _of_model_files.get(name) is not module}
        for name, module in _loaded_as(finder.names).items():
            if _top(name) in map(_top, of_program):
                del sys.modules[name]
            else:
                _of_model_files[name] = module
        sys.modules.update(of_program)


_of_model_files: dict[str, ModuleType] = {}
"Modules in ``sys.modules`` that a model file imported."


class _Finder(MetaPathFinder):
    """Finds modules by name in files that are given."""

    def __init__(self, files: Mapping[str, Path], trust: _Trust) -> None:
        self._files, self._trust = files, trust
        self.names = {_top(name) for name in files}

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Where a module is; None for any other."""
        if (file := self._files.get(fullname)) is None:
            return None
        loader = _BesideLoader(fullname, str(file), self._trust)
        spec = spec_from_file_location(fullname, file, loader=loader)
        assert spec is not None
        # Nothing is looked for in the folder of a package: its modules are among the files.
        spec.submodule_search_locations = [] if file.name == _PACKAGE else None
        return spec


def _module_name(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if file.name == _PACKAGE else parts)


def _loaded_as(names: Collection[str]) -> dict[str, ModuleType]:
    """Modules of these names that are loaded, and their submodules."""
    return {name: module for name, module in sys.modules.items() if _top(name) in names}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    """Files of a folder that a file in it imports."""
    try:
        tree = ast.parse(read_file(file, error=InputError))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
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
    if not _is_free(parts[0], folder):
        return
    for end in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:end])
        if os.path.isfile(place / _PACKAGE):
            yield place / _PACKAGE
            continue
        if os.path.isfile(module := f"{place}.py"):
            yield Path(module)
        return


def _is_free(name: str, folder: Path) -> bool:
    """Whether no module of this name is Python's own, ours, or installed elsewhere."""
    if name in sys.stdlib_module_names or name == "sagann":
        return False
    elsewhere = [each for each in sys.path if Path(each or ".").resolve() != folder.resolve()]
    try:
        found = PathFinder.find_spec(name, elsewhere)
    except (OSError, ValueError):
        return False
    # A folder without a file __init__.py is no module of anybody's.
    return found is None or found.origin is None
