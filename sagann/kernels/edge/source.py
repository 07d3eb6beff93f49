"""Generated sources, kept in a cache folder for people to read and for later processes to find.

Edge functions that differ in names alone have one source, and are compiled once: names come from the models that people write. A source's name is
the hash of its text and of the library that it imports, so a changed library never meets an old kernel.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from sagann.jit import cache_folder
from sagann.kernels.edge.function import EdgeFunction, verify


def canonical_source(
    function: EdgeFunction, in_order: frozenset[str], emit: Callable[[EdgeFunction, frozenset[str]], str]
) -> str:
    """The source that ``emit`` writes for a function under canonical names; ``in_order`` names its inputs that lie in the order of the pass."""
    verify(function)
    names = canonical_names(function)
    return emit(renamed(function, names), frozenset(names[name] for name in in_order))


def import_source(text: str, library: str) -> ModuleType:
    """Keep a generated module in the cache folder and import it; ``library`` is the :func:`library_hash` of its dialect."""
    path = cache_folder() / f"edge_{hashlib.sha256((library + text).encode()).hexdigest()[:20]}.py"
    # A kernel works without the file, which is for people to read and for Numba to find machine code by.
    with suppress(OSError):
        _store(text, path)
    return _imported(text, path)


@cache
def library_hash(compiler: str, *files: Path) -> str:
    """Hash of what a source of a dialect is compiled with: versions of the compiler, and the modules that the source imports."""
    library = hashlib.sha256(compiler.encode())
    for path in files:
        library.update(path.read_bytes())
    return library.hexdigest()


def _store(text: str, path: Path) -> None:
    if _holds(path, text):
        return
    aside = path.with_suffix(f".{uuid4().hex}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        try:
            # The first one of several processes stays: machine code is found by the time of its source, and belongs to one file.
            path.hardlink_to(aside)
        except OSError:
            if not _holds(path, text):
                aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _holds(path: Path, text: str) -> bool:
    """Whether a file has a text. A file that is missing, unreadable or damaged has not, nor has what is no file."""
    try:
        return path.read_bytes().decode() == text
    except (OSError, ValueError):
        return False


def _imported(text: str, path: Path) -> ModuleType:
    module = ModuleType(f"sagann_kernels_{path.stem}", "Generated.")
    module.__file__ = str(path)
    # Numba looks the module up by its name when it loads machine code.
    sys.modules[module.__name__] = module
    # Triton reads the source of its functions here.
    linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def canonical_names(function: EdgeFunction) -> Mapping[str, str]:
    """For each value of a function, a name that states its side or its operation, and its place."""
    sides = [given.side for given in function.inputs]
    kinds = [op.op for op in function.ops]
    return {
        value.name: f"{kind}_{place}"
        for place, (value, kind) in enumerate(zip(function.values, [*sides, *kinds], strict=True))
    }


def renamed(function: EdgeFunction, names: Mapping[str, str]) -> EdgeFunction:
    """The function with other names for its values, by their present names."""
    return replace(
        function,
        inputs=tuple(replace(given, name=names[given.name]) for given in function.inputs),
        ops=tuple(
            replace(
                op, name=names[op.name], args=tuple(names[arg] if isinstance(arg, str) else arg for arg in op.args)
            )
            for op in function.ops
        ),
        outputs=tuple(
            replace(output, values=tuple(names[value] for value in output.values)) for output in function.outputs
        ),
    )
