"""Run: what run.json says of a run, and of the model that it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sagann.config import TrainConfig
from sagann.nn import ModelConfig
from sagann.storage.json_fields import as_integer, as_mapping, as_text, as_texts
from sagann.train.contract import Contract, require_names
from sagann.train.losses import Loss

MAPPINGS = ("model", "train", "contract", "versions", "identity")
"Keys of run.json whose values are mappings."


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run folder, read."""

    path: Path
    "The run folder."
    model: str
    "Name of the model in the zoo, or of its class."
    model_config: ModelConfig | None
    """The configuration that the model was built from; None for a module of the user's own. Building a model from it executes
    the Python file that it may name."""
    train_config: TrainConfig
    "The training options."
    data: str
    "Name or path of the training data."
    contract: Contract
    "The sizes that the model expects of a graph."
    versions: Mapping[str, Any]
    "Versions of sagann, Python and PyTorch that the run was made with, and the number of threads."
    identity: Mapping[str, Any]
    "What must be the same where the run is resumed (:mod:`sagann.train.identity`)."
    class_names: tuple[str, ...]
    "Names of the classes; empty where none were given."
    loss: Loss
    "The loss that was trained. Of a function of the user's only the name is known."
    automatic_bytes: int | None
    "Memory budget that the run chose by itself, in bytes; None where the run chose none."
    metrics: Mapping[str, Any] | None = None
    "Content of metrics.json; None while the run is not finished."

    @property
    def graph(self) -> Mapping[str, Any]:
        """Sizes of the training graph, and a digest of each of its arrays (:func:`sagann.train.identity.graph_identity`)."""
        return self.identity["graph"]

    @property
    def device(self) -> str:
        """Type of the device that computed."""
        return self.identity["train"]["device"]

    def to_json(self) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "model": {
                "name": self.model,
                "config": None if self.model_config is None else asdict(self.model_config),
            },
            "train": self.train_config.to_json(),
            "data": self.data,
            "class_names": self.class_names,
            "contract": asdict(self.contract),
            "loss": self.loss.to_json(),
            "versions": self.versions,
            "identity": self.identity,
            "automatic_memory_bytes": self.automatic_bytes,
        }

    @classmethod
    def from_json(cls, path: Path, values: Mapping[str, Any]) -> Run:
        """The inverse of :meth:`to_json`; a KeyError, TypeError or ValueError where a value is missing, or none that a run can have."""
        model, identity = as_mapping(values["model"]), as_mapping(values["identity"])
        contract, loss = Contract(**as_mapping(values["contract"])), Loss.from_json(values["loss"])
        loss.require_fit(contract.kind, contract.num_classes)
        budget = values["automatic_memory_bytes"]
        # What is read of the identity.
        as_mapping(identity["graph"])
        as_text(as_mapping(identity["train"])["device"])
        return cls(
            path=path,
            model=as_text(model["name"]),
            model_config=None if model["config"] is None else ModelConfig(**as_mapping(model["config"])),
            train_config=TrainConfig(**as_mapping(values["train"])),
            data=as_text(values["data"]),
            contract=contract,
            versions=as_mapping(values["versions"]),
            identity=identity,
            class_names=require_names(as_texts(values["class_names"]), contract.num_classes, where="class_names"),
            loss=loss,
            automatic_bytes=None if budget is None else as_integer(budget, "bytes", of="automatic_memory_bytes"),
        )
