"""The site: every public name has a page, and every page of prose leads to the glossary."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="The site's tools are not installed: pip install sagann[docs]")

import griffe
from mkdocs.config import load_config

from sagann.config import SETTINGS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return _loaded("site_hook")


def _loaded(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_public_name_has_a_page(hook: ModuleType) -> None:
    names, pages = hook.public_names(), hook.reference()
    assert {"sagann", "sagann.nn", "sagann.train", "sagann.storage"} <= set(names)
    for package, public in names.items():
        for name in public:
            assert pages[f"reference/{package}.{name}.md"] == f"::: {package}.{name}\n"
            assert f"({package}.{name}.md)" in pages[f"reference/{package}.md"]


def test_the_names_are_those_of_all(hook: ModuleType) -> None:
    # Found in the sources, not by importing, so that a package which the hook does not look at is seen.
    found = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in (ROOT / "sagann").rglob("__init__.py")
        if re.search(r"^__all__ = ", path.read_text(), flags=re.MULTILINE)
    }
    assert set(hook.public_names()) == found


def test_the_front_page_links_to_pages_of_the_site(hook: ModuleType) -> None:
    front = hook.copied()["index.md"]
    assert "](docs/" not in front
    assert "](quickstart.md)" in front
    assert "](security.md)" in front
    assert hook.linked("[security](../SECURITY.md)") == "[security](security.md)"


def test_the_page_of_commands_has_every_option(hook: ModuleType) -> None:
    page = hook.on_page_markdown((DOCS / "cli.md").read_text(), None, None, None)
    rows = re.findall(r"^\| `(--[a-z-]+)[^`]*` \| ([^|]*) \| (.*) \|$", page, flags=re.MULTILINE)
    assert sorted(rows) == sorted((each.flag, each.default_text, each.help) for each in SETTINGS.values())


def test_what_pages_name_exists() -> None:
    files = {
        f"/{path.relative_to(ROOT)}"
        for top in ("sagann", "tests", "bench", "docs")
        for path in (ROOT / top).rglob("*")
    }
    missing = []
    for page in [ROOT / "README.md", ROOT / "SECURITY.md", *DOCS.glob("*.md")]:
        text = page.read_text()
        names = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|cpp|md)|(?:sagann|tests|bench|docs)/[\w/-]+)`", text)
        # NAME stands for what a reader puts there.
        paths = [name.rstrip("/") for name in names if "NAME" not in name]
        missing += [
            f"{page.name}: {path}" for path in paths if not any(file.endswith(f"/{path}") for file in files)
        ]
        modules = re.findall(r"python -m (bench[\w.]*)", text)
        missing += [f"{page.name}: {name}" for name in modules if not _is_module(name)]
    assert missing == []


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_no_code_is_published() -> None:
    excluded = load_config(str(ROOT / "mkdocs.yml")).exclude_docs
    for path in ("site_hook.py", "__pycache__/site_hook.cpython-311.pyc"):
        assert excluded.match_file(path)
    assert not excluded.match_file("training.md")


def test_docstrings_of_a_package_and_of_what_is_in_it_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    text = (
        "Sum of :class:`Edge`.\n\n.. math:: a + b\n\nArgs:\n    x: one.\nReturns:\n    It.\nExample:\n    >>> 1\n"
    )
    for folder in ("outer", "outer/inner"):
        (tmp_path / folder / "__init__.py").write_text(f'"""{text}"""\ndef one():\n    """As :class:`Two`."""\n')
    extensions = griffe.load_extensions(_loaded("site_docstrings").Docstrings)
    outer = griffe.load("outer", search_paths=[tmp_path], extensions=extensions)
    assert [outer[name].docstring.value for name in ("one", "inner.one")] == ["As ``Two``."] * 2
    assert (
        outer.docstring.value
        == outer["inner"].docstring.value
        == (
            "Sum of ``Edge``.\n\n```text\na + b\n```\n\nArgs:\n    x: one.\n\nReturns:\n    It.\n\nExamples:\n    >>> 1"
        )
    )
