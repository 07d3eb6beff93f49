from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagann.cli.run_settings import merge, read_tables, settings_of
from sagann.config import SETTINGS
from sagann.errors import InputError


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.toml",
        """
        [data]
        data = "demo"
        [model]
        hidden = 32
        norm = "layer"
        [train]
        lr = 1
        optimizer = "SGD"
        optimizer_options = {momentum = 0.9, nesterov = true}
        patience = 5
        """,
    )
    given = {"hidden": 64, "norm": None, "optimizer_options": {"momentum": 0.5}, "patience": None}
    settings = settings_of(merge(read_tables(file), given))
    assert settings.data.data == "demo"
    assert settings.model.hidden == 64
    assert settings.model.norm is None
    assert settings.train.lr == 1.0
    assert settings.train.optimizer_options == {"momentum": 0.5}
    assert settings.train.patience is None
    assert settings.model.layers == 2


def test_written_settings_are_the_same_settings(tmp_path: Path) -> None:
    given = {
        "data": "demo",
        "split": "random:0.5,0.1",
        "model": "gat",
        "model_options": {"attention_dropout": 0.1},
        "lr": 1e-3,
        "optimizer": "AdamW",
        "optimizer_options": {"betas": [0.8, 0.99]},
        "scheduler": "StepLR",
        "scheduler_options": {"step_size": 10},
        "clip_norm": 1.0,
        "monitor": "val/loss",
        "seed": 2**40,
    }
    settings = settings_of(merge({}, given))
    again = settings_of(merge(read_tables(write(tmp_path / "config.toml", settings.to_toml())), {}))
    assert again == settings
    assert again.to_toml() == settings.to_toml()


def test_every_setting_is_written_out() -> None:
    written = settings_of(merge({}, {"data": "demo"})).to_toml()
    assert all(f"\n{name} = " in written for name in SETTINGS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hidden = 3", r"unknown section in a configuration: 'hidden', expected \[data\], \[model\], \[train\]"),
        ("[modell]\nhidden = 3", r"unknown section in a configuration: 'modell'"),
        ("[[model]]\nhidden = 3", r"unknown section in a configuration: 'model'"),
        ("[model]\nhiden = 3", r"unknown key in a configuration: 'hiden' in \[model\] .*Did you mean 'hidden'\?"),
        ("[model]\nlr = 3", r"unknown key in a configuration: 'lr' in \[model\]"),
        ("[model", "configuration file is not TOML: "),
        ("lr = 1\nlr = 2", "configuration file is not TOML: "),
        ("lr = 2026-13-45", "configuration file is not TOML: "),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_tables(write(tmp_path / "run.toml", content))
    assert "run.toml" in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[model]\nhidden = '3'", r"hidden is '3', expected an integer .*ModelConfig\.hidden"),
        ("[train]\nepochs = 1.0", r"epochs is 1\.0"),
        ("[train]\nseed = 1979-05-27", r"seed is datetime\.date"),
        ("[train]\noptimizer_options = 'a=1'", "optimizer_options is no mapping"),
    ],
)
def test_values_of_a_file_are_checked_with_all_others(tmp_path: Path, content: str, message: str) -> None:
    tables = read_tables(write(tmp_path / "run.toml", content))
    with pytest.raises(InputError, match=message):
        settings_of(merge(tables, {"data": "demo"}))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = write(tmp_path / "run.toml", "\ufeff[data]\ndata = 'demo'\n")
    assert read_tables(file) == {"data": {"data": "demo"}}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory \(in .*nothing\.toml\)"):
        read_tables(tmp_path / "nothing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot be read: 'utf-8' codec.*must be text in UTF-8"):
        read_tables(tmp_path / "bytes.toml")


def test_paths_become_absolute_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph").mkdir()
    (tmp_path / "model.py").write_text("")
    settings = settings_of(merge({}, {"data": "graph", "model": "model.py:Net"}))
    assert settings.data.data == str(tmp_path / "graph")
    assert settings.model.model == f"{tmp_path / 'model.py'}:Net"
    assert settings_of(merge({}, {"data": "demo"})).data.data == "demo"
    assert settings_of(merge({}, {"data": "x\0y"})).data.data == "x\0y"
    assert settings_of(merge({}, {"data": "x" * 5000})).data.data == "x" * 5000


def test_what_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(InputError, match="a setting cannot be written in UTF-8"):
        settings_of(merge({}, {"data": "caf\udce9"}))


@pytest.mark.parametrize(
    ("saved", "given"),
    [
        (
            {
                "devices": "host,accelerator",
                "mapping": "model",
                "sharing": "static",
                "link_rate": 1e9,
                "profile": True,
            },
            {"devices": None},
        ),
        ({"hot": "10%", "score": "rpr", "cache": "static"}, {"hot": None}),
    ],
)
def test_what_is_unset_takes_along_what_only_counts_beside_it(saved: dict[str, Any], given: dict[str, Any]) -> None:
    tables = {"data": {"data": "demo"}, "model": {"model": "sage"}, "train": {"sample": [4, 3], **saved}}
    settings_of(tables)
    unset = settings_of(merge(tables, given)).train
    assert unset == settings_of({**tables, "train": {"sample": [4, 3]}}).train
    # What is given beside it is refused as ever.
    name, value = next((name, value) for name, value in saved.items() if name not in given)
    with pytest.raises(InputError, match=f"^{name} is .*, expected"):
        settings_of(merge(tables, {**given, name: value}))


def test_a_budget_keeps_the_score_of_a_tier_that_is_unset() -> None:
    train = {"sample": [4, 3], "hot": "10%", "memory": "1GiB", "score": "rpr"}
    tables = {"data": {"data": "demo"}, "model": {"model": "sage"}, "train": train}
    assert settings_of(merge(tables, {"hot": None})).train.score == "rpr"
