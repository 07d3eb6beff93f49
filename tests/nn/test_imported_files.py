"""Which files beside a model file it imports, and what they see."""

from __future__ import annotations

import importlib
import os
import py_compile
import sys
from importlib.util import cache_from_source, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from sagann.errors import InputError
from sagann.nn.imported_files import SourceLoader, importable, imported_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "mine.py": "import torch, random\nfrom parts_of_mine import a\nimport deep_parts.inner.last\n",
        "parts_of_mine.py": "def late():\n    import other_part_of_mine\n    return other_part_of_mine\na = 1\n",
        "other_part_of_mine.py": "import mine\n",
        "random.py": "raise ValueError('never imported')\n",
        "unused.py": "raise ValueError('never imported')\n",
        "deep_parts/__init__.py": "from . import near\nfrom .inner import *\n",
        "deep_parts/near.py": "",
        "deep_parts/far.py": "",
        "deep_parts/inner/__init__.py": "from ..far import *\nfrom ...beyond import *\n",
        "deep_parts/inner/last.py": "from .. import near\nnumber = 3\n",
        "beyond.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_are_followed(folder: Path) -> None:
    found = [str(path.relative_to(folder)) for path in imported_files(folder / "mine.py")]
    assert found == [
        "deep_parts/__init__.py",
        "deep_parts/far.py",
        "deep_parts/inner/__init__.py",
        "deep_parts/inner/last.py",
        "deep_parts/near.py",
        "mine.py",
        "other_part_of_mine.py",
        "parts_of_mine.py",
    ]


def test_installed_modules_and_ours_are_never_taken_from_the_folder(tmp_path: Path) -> None:
    for name in ("sagann/__init__.py", "sagann/graph.py", "torch/__init__.py", "numpy/typing.py", "loose/part.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ValueError('never imported')\n")
    path = tmp_path / "mine.py"
    long = "a" * 300
    path.write_text(
        f"import sagann, torch, numpy.typing, sagann.graph\ntry:\n    import loose.part, {long}\nexcept ImportError: pass\n"
    )
    assert imported_files(path) == []
    with importable([], path):
        spec = spec_from_file_location("mine_of_test", path, loader=SourceLoader("mine_of_test", str(path)))
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))


def test_only_the_texts_that_were_found_are_imported(tmp_path: Path) -> None:
    """Neither compiled code, nor another form of a module that Python would prefer, nor a module that no import names."""
    (tmp_path / "mine.py").write_text("import chosen.near\nimport single\n")
    (tmp_path / "chosen").mkdir()
    for name in ("chosen/__init__.py", "chosen/near.py", "chosen/other.py", "single.py"):
        (tmp_path / name).write_text(f"name = {name!r}\n")
    evil = tmp_path / "evil.py"
    evil.write_text("name = 'evil'\n")
    for name in ("chosen/near.py", "single.py"):
        compiled_file = Path(cache_from_source(str(tmp_path / name)))
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(evil), cfile=str(compiled_file), invalidation_mode=unchecked)
    (tmp_path / "single").mkdir()
    py_compile.compile(str(evil), cfile=str(tmp_path / "single" / "__init__.pyc"))
    (tmp_path / "single.abi3.so").write_text("")
    files = imported_files(tmp_path / "mine.py")
    try:
        with importable(files, tmp_path / "mine.py"):
            for name, file in (
                ("chosen", "chosen/__init__.py"),
                ("chosen.near", "chosen/near.py"),
                ("single", "single.py"),
            ):
                assert importlib.import_module(name).name == file
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("chosen.other")
        # As code that imports when it runs.
        del sys.modules["single"]
        assert importlib.import_module("single").name == "single.py"
    finally:
        for name in ("chosen", "chosen.near", "single"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("text", ["def", "\0", "from .. import mine", "import " + ".".join("a" * 9)])
def test_a_file_that_cannot_be_read_imports_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    assert imported_files(tmp_path / "broken.py") == []


def test_modules_of_the_program_are_there_again(folder: Path) -> None:
    (folder / "deep_parts" / "inner" / "__init__.py").write_text("")
    files = imported_files(folder / "mine.py")
    own = sys.modules["parts_of_mine"] = ModuleType("parts_of_mine")
    try:
        with importable(files, folder / "mine.py"):
            inside = importlib.import_module("parts_of_mine")
            assert importlib.import_module("deep_parts.inner.last").number == 3
            assert inside.a == 1
            assert inside.late().__file__ == str(folder / "other_part_of_mine.py")
            for name in ("unused", "beyond"):
                with pytest.raises(ModuleNotFoundError):
                    importlib.import_module(name)
        assert sys.modules["parts_of_mine"] is own
        # Code that runs later finds what was imported.
        assert importlib.import_module("other_part_of_mine").__file__ == str(folder / "other_part_of_mine.py")
    finally:
        for name in [
            each for each in sys.modules if each.partition(".")[0] in ("deep_parts", "other_part_of_mine", "mine")
        ]:
            del sys.modules[name]
        del sys.modules["parts_of_mine"]


def test_a_file_that_others_may_write_is_refused(folder: Path) -> None:
    (folder / "parts_of_mine.py").chmod(0o666)
    with pytest.raises(
        InputError, match=r"other users may have written: '.*parts_of_mine.py', of user \d+, mode 0666"
    ):
        imported_files(folder / "mine.py")
    (folder / "mine.py").chmod(0o666)
    assert imported_files(folder / "mine.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_unless_the_model_file_is_theirs(folder: Path) -> None:
    os.chown(folder / "parts_of_mine.py", 12345, 12345)
    with pytest.raises(InputError, match="of user 12345"):
        imported_files(folder / "mine.py")
    os.chown(folder / "mine.py", 12345, 12345)
    assert imported_files(folder / "mine.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("package", ["deep_parts", "deep_parts/inner"])
def test_a_package_whose_folder_is_of_another_user_is_refused(folder: Path, package: str) -> None:
    # Its files are of root, and its owner could exchange them.
    os.chown(folder / package, 12345, 12345)
    with pytest.raises(InputError, match=f"'{folder / package}', of user 12345"):
        imported_files(folder / "mine.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_is_exchanged_before_it_is_executed_is_refused(folder: Path) -> None:
    files = imported_files(folder / "mine.py")
    os.chown(folder / "parts_of_mine.py", 12345, 12345)
    with importable(files, folder / "mine.py"), pytest.raises(InputError, match="of user 12345"):
        importlib.import_module("parts_of_mine")
