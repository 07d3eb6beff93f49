from __future__ import annotations

from importlib import metadata

import pytest

from sagann.report.installed import core_versions, extras


def test_what_is_always_needed() -> None:
    versions = core_versions()
    assert {"torch", "numpy", "numba", "pyarrow", "typer", "rich"} <= set(versions)
    assert versions["torch"] == metadata.version("torch")
    assert "pytest" not in versions


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        "torch>=2",
        'present>=1; extra == "a"',
        "absent ; extra == 'b'",
        'present; extra == "b"',
        'x; extra == "dev"',
    ]

    def version(name: str) -> str:
        if name != "present":
            raise metadata.PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr(metadata, "requires", lambda _: listed)
    monkeypatch.setattr(metadata, "version", version)
    found = {extra.name: extra for extra in extras()}
    assert set(found) == {"a", "b"}
    assert found["a"].installed
    assert not found["b"].installed
    assert found["b"].packages == {"absent": None, "present": "1.2"}
    assert found["b"].command == "pip install 'sagann[b]'"
    assert core_versions() == {"torch": None}


def test_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(_: str) -> list[str]:
        raise metadata.PackageNotFoundError("sagann")

    monkeypatch.setattr(metadata, "requires", requires)
    assert core_versions() == {}
    assert extras() == []
