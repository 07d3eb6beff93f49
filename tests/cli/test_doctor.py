from __future__ import annotations

from collections.abc import Iterator

import pytest

from sagann.report.probes import Finding
from tests.cli.conftest import Invoke


def findings(*, core_ok: bool) -> Iterator[Finding]:
    yield Finding(name="counting sort", ok=core_ok, detail="200000 keys")
    yield Finding(name="CUDA", ok=False, detail="no CUDA device")


def test_all_is_well(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=True))
    outcome = invoke("doctor")
    assert outcome.code == 0
    for text in ("torch", "cores", "memory limit (cgroup)", "tensorboard", "counting sort", "no CUDA device"):
        assert text in outcome.out
    assert outcome.out.endswith("sagann works here.\n")


def test_what_is_broken_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=False))
    outcome = invoke("doctor")
    assert outcome.code == 1
    assert outcome.out.endswith("sagann does not work here: counting sort.\n")


def test_what_is_missing_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.report.probes.run_probes", lambda: findings(core_ok=True))
    monkeypatch.setattr("sagann.report.installed.core_versions", lambda: {"numba": None})
    outcome = invoke("doctor", "--quiet")
    assert outcome.code == 1
    assert outcome.err == ""
    assert "sagann does not work here: numba." in outcome.out
