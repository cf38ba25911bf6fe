"""One optimizer step: a function of the step's number, the weights, the moments and nothing else.

Shapes: B captions; L, D, P as in giornata.diffusion.captions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from giornata.diffusion import captions
from giornata.diffusion.adapters_off import adapters_off
from giornata.diffusion.captions import Embedding, EmbeddingCache
from giornata.diffusion.dropping import Dropping
from giornata.diffusion.lora import Adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.norm_limit import norm_limit
from giornata.diffusion.objective import NoisyBatch, Objective
from giornata.diffusion.optimizer import AdapterOptimizer, Group
from giornata.diffusion.rates import TOKENS, by_rate
from giornata.diffusion.tokens import NewTokens, learning_steps, spoken
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.feed import Feed, Ready
from giornata.workloads.train.keeping import Learner

WHOLE = 1.0 - 1e-9  # of a step; the shares are rounded


def optimizer_of(adapters: Adapters, spec: TrainSpec, tokens: NewTokens | None = None) -> AdapterOptimizer:
    """The job's optimizer over the adapter and, among its parameters, the new tokens; what belongs to the text
    encoders has its own learning rate, and so may blocks of the UNet."""
    groups = [
        Group(
            learning_rate=rate.learning_rate,
            parameters={name: adapters.parameters[name] for name in names},
            stop_step=rate.stop_step,
            settle=tokens.settle if rate.kind == TOKENS and tokens is not None else None,
        )
        for rate, names in by_rate(spec, adapters.parameters).items()
    ]
    return AdapterOptimizer(groups, spec, settle=norm_limit(adapters.parameters, spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """Carries out steps. The weights and moments live in the adapters and in `optimizer`; `dropping` is that of the
    adapters."""

    base: BaseModel
    spec: TrainSpec
    objective: Objective
    embeddings: EmbeddingCache | None
    optimizer: Learner
    dropping: Dropping = field(default_factory=Dropping)

    def step(self, step: int, feed: Feed) -> tuple[torch.Tensor, float]:
        """Optimizer step number `step`, from 0, on the next passes of `feed`. Returns its mean loss (float32 scalar,
        on the device, not waited for) and its learning rate."""
        return self.gradients(step, feed), self.update(step)

    def gradients(self, step: int, feed: Feed) -> torch.Tensor:
        """The first part of a step: adds up gradients, and leaves weights and moments as they are. Returns the mean
        loss."""
        losses, shares = [], 0.0
        while shares < WHOLE:
            ready = feed.take()
            batch = ready.batch.to(self.base.device)
            with self.dropping.during(self._tickets(batch)):
                loss = self._loss(ready, batch, step) * ready.share
                loss.backward()
            losses.append(loss.detach())
            shares += ready.share
        return torch.stack(losses).sum()

    def update(self, step: int) -> float:
        """The second part: spends the gradients on the weights. Returns the learning rate."""
        return self.optimizer.step(step)

    def forget_gradients(self) -> None:
        """Throw away what `gradients` has added up."""
        self.optimizer.forget_gradients()

    def _tickets(self, batch: NoisyBatch) -> torch.Tensor | None:
        """Of all pictures that the adapter sees in this pass."""
        tickets_B5 = batch.tickets_B5
        if tickets_B5 is None or not self.spec.prior_prediction:
            return tickets_B5
        return torch.cat([tickets_B5, tickets_B5])

    def _loss(self, ready: Ready, batch: NoisyBatch, step: int) -> torch.Tensor:
        """With prior_prediction each picture is looked at once more, under the class prompt."""
        base, texts, prior_BCHW = self.base, ready.captions, None
        if self.spec.prior_prediction:
            prior = (str(self.spec.class_prompt),) * len(texts)
            prior_BCHW = self._as_the_base_sees(batch, prior, step)
            batch, texts = batch.twice(), (*texts, *prior)
        with self._autocast():
            loss_B = self.objective.each(base.unet, batch, self._embedding(texts, step), prior_BCHW=prior_BCHW)
            return self.objective.total(loss_B, ready.role)

    def _as_the_base_sees(self, batch: NoisyBatch, texts: Sequence[str], step: int) -> torch.Tensor:
        base = self.base
        with adapters_off((base.unet, *base.text_encoders)), self._autocast():
            return self.objective.predict(base.unet, batch, self._embedding(texts, step))

    def _autocast(self) -> torch.autocast:
        mixed = self.spec.mixed_precision == "bf16"
        return torch.autocast(self.base.device.type, dtype=torch.bfloat16, enabled=mixed)

    def _embedding(self, texts: Sequence[str], step: int) -> Embedding:
        if self.embeddings is not None:
            return self.embeddings.batch(texts)
        heard = [spoken(self.spec, text) for text in texts]
        with torch.set_grad_enabled(self._text_encoders_learn(step) and torch.is_grad_enabled()):
            return captions.encode(self.base.tokenizers, self.base.text_encoders, heard, family=self.base.family)

    def _text_encoders_learn(self, step: int) -> bool:
        spec, stop = self.spec, self.spec.stop_text_encoder_training
        adapters_learn = spec.train_text_encoder and (stop is None or step < stop)
        return adapters_learn or (spec.train_text_encoder_ti and step < learning_steps(spec))
