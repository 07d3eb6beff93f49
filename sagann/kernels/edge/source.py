"""Generated sources in a cache folder, imported from there, so that they can be read and found again.

A source's name is the hash of its text and of the library that it is built on, so a changed library never meets an
old kernel.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from sagann.cache_folder import cache_folder


def import_source(text: str, library: str) -> ModuleType:
    """Keep a generated module in the cache folder and import it.

    Args:
        text: its source.
        library: hash of what it is built on (:func:`library_hash`).
    """
    path = cache_folder() / f"edge_{hashlib.sha256((library + text).encode()).hexdigest()[:20]}.py"
    # What is kept is for people to read, and tells Numba which machine code is the text's: it works without.
    with suppress(OSError):
        _store(text, path)
    return _imported(text, path)


@cache
def library_hash(compiler: str, folder: Path, *others: Path) -> str:
    """Hash of a dialect: its compiler's versions, the modules in its folder, those above that it shares, and others."""
    library = hashlib.sha256(compiler.encode())
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *sorted(folder.glob("*.py")), *others]:
        library.update(path.read_bytes())
    return library.hexdigest()


def _store(text: str, path: Path) -> None:
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except (OSError, UnicodeDecodeError):
        # Not there, not to be read by this user, or damaged.
        pass
    aside = path.with_suffix(f".{uuid4().hex}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _imported(text: str, path: Path) -> ModuleType:
    module = ModuleType(f"sagann_kernels_{path.stem}", "Generated.")
    module.__file__ = str(path)
    # Numba looks the module up by its name when it loads machine code.
    sys.modules[module.__name__] = module
    # Triton reads the source of its functions here.
    linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
