"""A CUDA device as a trainer: its gradient, its queues, and its errors. Without a device copies are as late as they may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import LayerError, TrainerError
from sagann.hybrid.cuda_trainer import CudaTrainer
from sagann.hybrid.trainer import Exchange, Found, LossOf, Share, Weights
from sagann.runtime.device.streams import Streams
from sagann.runtime.loading import MiniBatch
from tests.cuda import waits_refused
from tests.hybrid.replicas import Replica, expected_of, shares_of
from tests.runtime.device.late_streams import LateStreams

PLACES = [
    "simulated",
    pytest.param(
        "cuda:0",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


class Trained:
    """A trainer with a copy of a model, and the parameters that are trained on the host, which are published for each launch."""

    def __init__(self, place: str, model: nn.Module, loss_of: LossOf, parameters: list[nn.Parameter]) -> None:
        device = torch.device("cpu" if place == "simulated" else place)
        self.streams: Any = LateStreams() if place == "simulated" else Streams(device)
        name = "cuda:0" if place == "simulated" else place
        self.trainer = CudaTrainer(name, model.to(device), loss_of, self.streams)
        memory = self.streams.pinned(Exchange.layout(parameters).num_bytes)
        self.parameters, self.published = parameters, Exchange(parameters, memory)

    def sent(self, share: Share) -> Any:
        return self.trainer.send((share, self.trainer._copies.pack(share.batch)))

    def launch(self, sent: Any) -> None:
        with torch.no_grad():
            for memory, parameter in zip(self.published.tensors, self.parameters, strict=True):
                memory.copy_(parameter)
        self.trainer.launch(sent, Weights(memory=self.published.memory))

    def finish(self) -> Found:
        found = self.trainer.finish()
        found.elapsed.seconds()
        return found

    def train(self, share: Share) -> Found:
        sent = self.sent(share)
        self.launch(sent)
        found = self.finish()
        self.trainer.release(sent)
        return found


@pytest.mark.parametrize("place", PLACES)
def test_shares_are_sent_ahead_and_dropped(place: str) -> None:
    model, loss_of = Replica()()
    copied, its_loss = Replica()()
    trainer = Trained(place, copied, its_loss, list(model.parameters()))
    shares = shares_of(6, 5, 5, 4)
    sent = [trainer.sent(share) for share in shares]
    expected = [expected_of(loss_of, list(model.parameters()), share)[0] for share in shares]
    losses = []
    for each in sent[:2]:
        trainer.launch(each)
        losses.append(trainer.finish().numbers[0].item())
    # An epoch that is left early.
    trainer.launch(sent[2])
    trainer.trainer.begin()
    losses.append(trainer.train(shares[3]).numbers[0].item())
    assert losses == pytest.approx([*expected[:2], expected[3]], rel=1e-5)


def test_a_parameter_without_gradient_has_none() -> None:
    model, loss_of = Replica()()
    first, *_ = model.parameters()
    first.requires_grad_(False)
    trainer = Trained("simulated", model, loss_of, list(Replica()()[0].parameters()))
    found = trainer.train(shares_of(20)[0])
    assert found.gradients[0] is None
    assert all(gradient is not None for gradient in found.gradients[1:])


def test_errors_of_pytorch_name_trainer_and_iteration_and_others_stay() -> None:
    model, _ = Replica()()
    raised: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]

    def loss_of(batch: MiniBatch) -> Tensor:
        raise raised[0]

    trainer = Trained("simulated", model, loss_of, list(model.parameters()))
    with pytest.raises(
        TrainerError, match=r"trainer 'cuda:0' has failed while propagating epoch 0, batch 0.*Tried"
    ):
        trainer.train(shares_of(20)[0])
    raised[0] = LayerError("no such layer: 0 (in here)", hint="Write one.")
    with pytest.raises(LayerError, match="no such layer"):
        trainer.train(shares_of(20)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_host_waits_for_nothing_until_it_asks_for_the_gradient() -> None:
    model, its_loss = Replica(dropout=0.5)()
    trainer = Trained("cuda:0", model, its_loss, list(Replica()()[0].parameters()))
    shares = shares_of(13, 7)
    for share in shares:
        trainer.train(share)
    sent = [trainer.sent(share) for share in shares]
    torch.cuda.synchronize()
    with waits_refused():
        trainer.launch(sent[0])
    assert trainer.finish().numbers[0].isfinite()
