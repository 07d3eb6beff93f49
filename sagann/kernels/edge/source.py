"""Generated sources: the cache folder that keeps them for people to read and for later processes to find, and the lines that dialects share.

Edge functions that differ in names alone have one source, and are compiled once: names come from the models that people write. A source's name is
the hash of its text and of the library that it imports, so a changed library never meets an old kernel.
"""

from __future__ import annotations

import hashlib
import linecache
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from sagann.jit import cache_folder
from sagann.kernels.edge.function import COMPARISONS, EdgeFunction, Input, Op, Output, kind_of, lanes


def canonical_source(
    function: EdgeFunction, in_order: frozenset[str], emit: Callable[[EdgeFunction, frozenset[str]], str]
) -> str:
    """The source that ``emit`` writes for a function under canonical names; ``in_order`` names its inputs that lie in the order of the pass."""
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


ITEM = ("first_row", "last_row", "first_edge", "last_edge", "slot")
"Fields of a work item, in order."


def indented(depth: int, lines: Iterable[str]) -> list[str]:
    """The lines, ``depth`` levels further to the right."""
    return ["    " * depth + line for line in lines]


def mention(lines: Iterable[str], name: str) -> bool:
    """Whether lines mention a variable. A longer name that contains ``name`` does not count."""
    found = re.compile(rf"\b{re.escape(name)}\b")
    return any(found.search(line) for line in lines)


def float_text(number: float) -> str:
    """A floating number as source, infinity and NaN included."""
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def edge_names(*, continued: bool) -> tuple[str, str]:
    """Variables of an edge's position and of its id. The two differ in chunks, over which a pass continues."""
    return ("edge_local", "edge_global") if continued else ("edge_id", "edge_id")


def operand_kind(function: EdgeFunction, op: Op) -> str:
    """The kind of lanes that an element-wise op computes in."""
    if op.op in ("and", "or", "not"):
        return "b1"
    kinds = [kind_of(function.value(arg)) for arg in op.args if isinstance(arg, str)]
    # The mask of a where is converted to no other kind.
    kinds = kinds[1:] if op.op == "where" else kinds
    kinds = kinds if op.op in COMPARISONS else [*kinds, kind_of(op)]
    return max(kinds, key=["b1", "i4", "i8", "f4", "f8"].index)


class OutputWriter(ABC):
    """Writes the lines that one output adds to a kernel: its state in registers, the update, and the result.

    The output is the function's ``number``-th. Its first tensor is the ``result``-th of the pass.
    """

    state: tuple[str, ...] = ()
    "Stems of the variables that hold the state, in the order of the reduction's tensors."

    def __init__(self, function: EdgeFunction, output: Output, number: int, result: int) -> None:
        self.output, self.number, self.result = output, number, result
        self.value, self.score = function.value(output.values[-1]), function.value(output.values[0])
        self.kind = "f8" if kind_of(self.value) == "f8" else "f4"

    def part(self, place: int) -> Input | Op | None:
        """The value with the feature shape of the state's tensor at ``place``; None for a tensor of single numbers."""
        return {"value": self.value, "score": self.score, "row": None}[self.output.reduction.state[place].of]

    def part_lanes(self, place: int) -> int:
        """Lanes in memory of a row of the state's tensor at ``place``."""
        part = self.part(place)
        return 1 if part is None else lanes(part)

    def variable(self, place: int) -> str:
        """Name of the variable that holds the state's tensor at ``place``."""
        return f"{self.state[place]}_{self.number}"

    @abstractmethod
    def filled(self, place: int, number: float) -> str:
        """An expression for a variable of the state whose lanes are all ``number``."""

    def before(self) -> list[str]:
        """Lines before the first row of the work item."""
        return []

    def start(self) -> list[str]:
        """Lines at the start of a row: the state is neutral."""
        neutral = [part.neutral for part in self.output.reduction.state]
        return [
            f"{self.variable(place)} = {self.filled(place, neutral[place])}" for place in range(len(self.state))
        ]

    @abstractmethod
    def update(self) -> list[str]:
        """Lines for every edge, or every tile of edges."""

    def finish(self) -> list[str]:
        """Lines at the end of a row."""
        return []

    def resume(self) -> list[str]:
        """Lines that take up a row's earlier results, where a pass continues."""
        return []

    def after(self) -> list[str]:
        """Lines after the last row of the work item."""
        return []
