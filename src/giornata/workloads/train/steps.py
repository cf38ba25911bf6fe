"""One optimizer step: a function of the step's number, the weights, the moments and nothing else.

Shapes: B captions; L, D, P as in giornata.diffusion.captions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from giornata.diffusion import captions
from giornata.diffusion.captions import Embedding, EmbeddingCache
from giornata.diffusion.lora import Adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.objective import Objective
from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.feed import Feed, Ready
from giornata.workloads.train.keeping import Learner

WHOLE = 1.0 - 1e-9  # of a step; the shares are rounded


def optimizer_of(adapters: Adapters, spec: TrainSpec) -> AdapterOptimizer:
    """The job's optimizer over the adapter; the text encoders' part has its own learning rate."""
    rates = {"unet": spec.learning_rate, "text_encoders": spec.text_encoder_lr}
    stops = {"text_encoders": spec.stop_text_encoder_training}
    names = {id(parameter): name for name, parameter in adapters.parameters.items()}
    groups = [
        Group(
            learning_rate=rates[group],
            parameters={names[id(parameter)]: parameter for parameter in parameters},
            stop_step=stops.get(group),
        )
        for group, parameters in adapters.parameter_groups.items()
    ]
    return AdapterOptimizer(groups, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """Carries out steps. The weights and moments live in the adapters and in `optimizer`."""

    base: BaseModel
    spec: TrainSpec
    objective: Objective
    embeddings: EmbeddingCache | None
    optimizer: Learner

    def step(self, step: int, feed: Feed) -> tuple[torch.Tensor, float]:
        """Optimizer step number `step`, from 0, on the next passes of `feed`. Returns its mean loss (float32 scalar,
        on the device, not waited for) and its learning rate."""
        losses, shares = [], 0.0
        while shares < WHOLE:
            ready = feed.take()
            loss = self._loss(ready, step) * ready.share
            loss.backward()
            losses.append(loss.detach())
            shares += ready.share
        rate = self.optimizer.step(step)
        return torch.stack(losses).sum(), rate

    def _loss(self, ready: Ready, step: int) -> torch.Tensor:
        base, mixed = self.base, self.spec.mixed_precision == "bf16"
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=mixed):
            return self.objective.loss(base.unet, ready.batch.to(base.device), self._embedding(ready.captions, step))

    def _embedding(self, texts: Sequence[str], step: int) -> Embedding:
        if self.embeddings is not None:
            return self.embeddings.batch(texts)
        stop = self.spec.stop_text_encoder_training
        with torch.set_grad_enabled(self.spec.train_text_encoder and (stop is None or step < stop)):
            return captions.encode(self.base.tokenizers, self.base.text_encoders, texts)


@contextmanager
def gradient_checkpointing(base: BaseModel, wanted: bool) -> Iterator[None]:
    """Trade time for memory in the UNet. The text encoders are left alone: they are 1 % of the work."""
    if not wanted:
        yield
        return
    base.unet.enable_gradient_checkpointing()
    try:
        yield
    finally:
        base.unet.disable_gradient_checkpointing()
