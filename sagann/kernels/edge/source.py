"""Generated sources in a cache folder, imported from there, so that they can be read and found again.

A source's name is the hash of its text and of the library that it is built on, so a changed library never meets an
old kernel.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType


def import_source(text: str, library: str) -> ModuleType:
    """Keep a generated module in the cache folder and import it.

    Args:
        text: its source.
        library: hash of what it is built on (:func:`library_hash`).
    """
    return _imported(_stored(text, library))


def cache_folder() -> Path:
    """Where generated kernels are kept: $SAGANN_CACHE, or sagann in the user's cache folder."""
    stated = os.environ.get("SAGANN_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sagann"
    folder = (Path(stated) if stated else default) / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


@cache
def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="sagann-kernels-"))


@cache
def library_hash(compiler: str, folder: Path) -> str:
    """Hash of a dialect: its compiler's version, the modules in its folder and those above that it shares."""
    library = hashlib.sha256(compiler.encode())
    for path in [*sorted(Path(__file__).parent.glob("*.py")), *sorted(folder.glob("*.py"))]:
        library.update(path.read_bytes())
    return library.hexdigest()


def _stored(text: str, library: str) -> Path:
    name = hashlib.sha256((library + text).encode()).hexdigest()[:20]
    path = cache_folder() / f"edge_{name}.py"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    return path


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sagann_kernels_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Numba looks the module up by its name when it loads machine code.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
