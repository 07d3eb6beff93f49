"""What the site generates: pages from files of the repository's root, a page for every public name, and the tables of options.

The reference has a page for each name in ``__all__`` of sagann and of its packages, so none can be forgotten. mkdocs
calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sagann
from sagann.config import SETTINGS

ROOT = Path(__file__).parents[1]
FOLDER = "reference"
COPIED = {"index.md": "README.md", "security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
"Pages of the site, and the files of the repository's root that they are made of."
OPTIONS = "<!-- options -->"
"Where a page has the tables of options."


def public_names() -> dict[str, list[str]]:
    """Names in ``__all__`` of sagann and of its packages, by package."""
    walked = pkgutil.walk_packages(sagann.__path__, f"{sagann.__name__}.")
    modules = {
        name: importlib.import_module(name)
        for name in [sagann.__name__, *(one.name for one in walked if one.ispkg)]
    }
    return {
        name: sorted(set(module.__all__) - {"__version__"})
        for name, module in modules.items()
        if hasattr(module, "__all__")
    }


def reference() -> dict[str, str]:
    """Text of every page of the reference, by its path in the site."""
    pages = {f"{FOLDER}/index.md": "# Reference\n\nPublic names, by the package that they are imported from.\n"}
    for package, names in public_names().items():
        lines = [f"# {package}", "", f"::: {package}", "    options:", "      members: false", ""]
        pages[f"{FOLDER}/index.md"] += f"\n## [{package}]({package}.md)\n\n"
        for name in names:
            page = f"{package}.{name}.md"
            pages[f"{FOLDER}/{page}"] = f"::: {package}.{name}\n"
            link = f"- [`{name}`]({page})\n"
            pages[f"{FOLDER}/index.md"] += link
            lines.append(link.strip())
        pages[f"{FOLDER}/{package}.md"] = "\n".join(lines) + "\n"
    return pages


def copied() -> dict[str, str]:
    """Text of the pages that are files of the repository's root; links to docs/ become links between pages."""
    return {
        page: linked((ROOT / file).read_text())
        .replace("](docs/", "](")
        .replace("](LICENSE)", "](https://www.apache.org/licenses/LICENSE-2.0)")
        for page, file in COPIED.items()
    }


def linked(text: str) -> str:
    """A page's text, where links to files of the repository's root become links to the pages that are made of them."""
    for page, file in COPIED.items():
        text = text.replace(f"]({file})", f"]({page})").replace(f"](../{file})", f"]({page})")
    return text


def option_tables() -> str:
    """A table for each group of the options of ``sagann train``, from the fields of the configurations."""
    rows: dict[str, list[str]] = {}
    for option in SETTINGS.values():
        value = f" {option.metavar}".rstrip()
        row = f"| `{option.flag}{value}` | {option.default_text} | {option.help} |"
        rows.setdefault(option.panel, []).append(row)
    head = "| option | default | meaning |\n|---|---|---|\n"
    return "\n\n".join(f"### {panel}\n\n{head}" + "\n".join(found) for panel, found in rows.items())


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page of docs/, and put the options where it wants them."""
    return linked(markdown).replace(OPTIONS, option_tables())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for path, text in {**copied(), **reference()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the reference to the navigation."""
    sections: list[object] = [f"{FOLDER}/index.md"]
    for package, names in public_names().items():
        pages = [{name: f"{FOLDER}/{package}.{name}.md"} for name in names]
        sections.append({package: [f"{FOLDER}/{package}.md", *pages]})
    assert config.nav is not None
    config.nav.append({"Reference": sections})
    return config
