"""One optimizer step: a function of the step's number, the weights, the moments and nothing else.

Shapes: B captions; L, D, P as in giornata.diffusion.captions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from giornata.diffusion import captions
from giornata.diffusion.captions import Embedding
from giornata.diffusion.lora import Adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.objective import Objective
from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.caching import Supplies
from giornata.workloads.train.draws import Draw, assemble


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
    supplies: Supplies
    optimizer: AdapterOptimizer

    def step(self, step: int) -> tuple[torch.Tensor, float]:
        """Optimizer step number `step`, from 0. Returns its mean loss (float32 scalar, on the device, not waited
        for) and its learning rate."""
        micros = self.spec.gradient_accumulation_steps
        losses = []
        for micro in range(micros):
            loss = self._loss(self.supplies.draws.micro_batch(step, micro), step)
            (loss / micros).backward()
            losses.append(loss.detach())
        rate = self.optimizer.step(step)
        return torch.stack(losses).mean(), rate

    def _loss(self, drawn: Sequence[Draw], step: int) -> torch.Tensor:
        base, spec = self.base, self.spec
        batch = assemble(self.supplies.draws, drawn, self.supplies.latents, base.vae.config, base.device)
        mixed = spec.mixed_precision == "bf16"
        with torch.autocast(base.device.type, dtype=torch.bfloat16, enabled=mixed):
            return self.objective.loss(
                base.unet, batch, self._embedding([self.supplies.draws.caption(draw) for draw in drawn], step)
            )

    def _embedding(self, texts: Sequence[str], step: int) -> Embedding:
        if self.supplies.embeddings is not None:
            return self.supplies.embeddings.batch(texts)
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
