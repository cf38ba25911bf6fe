"""One optimizer step: a function of the step's number, the weights, the moments and nothing else.

Shapes: B captions; L, D, P as in giornata.diffusion.encode.captions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from giornata.diffusion.adapter.adapter_plan import TOKENS, by_rate
from giornata.diffusion.adapter.batched_lora import adapters_off
from giornata.diffusion.adapter.dropping import Dropping
from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.adapter.tokens import NewTokens, learning_steps
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.sample_order import Role
from giornata.diffusion.encode import captions
from giornata.diffusion.encode.captions import Embedding, EmbeddingCache
from giornata.diffusion.optim.objective import NoisyBatch, Objective
from giornata.diffusion.optim.optimizer import AdapterOptimizer, JobOptimizer, ParameterGroup, norm_limit
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import spoken
from giornata.workloads.interface import Clock
from giornata.workloads.train.device.graphs import Pass, named_tensors, part_of
from giornata.workloads.train.inputs.encoding import CachedInputs
from giornata.workloads.train.inputs.sampling_plan import assemble

# ---- the feed: a thread prepares the batches of the coming passes while the device is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPass:
    """One forward and backward pass: its batch, on the CPU, and the caption of each picture.

    `share` is its part of the step's pictures; the shares of a step add up to 1. `SamplingPlan.role_of` gives `role`.
    """

    step: int
    batch: NoisyBatch
    captions: tuple[str, ...]
    share: float
    role: Role | None = None


class PassFeed:
    """The passes from `first_step` to before `end_step`, in order; each is begun when the one before is taken.

    `rows` pictures of each sample set make a pass (None: all of a step). `waited_s` is how long `take` has waited in
    all. As a context manager it ends its thread.
    """

    def __init__(
        self,
        cached_inputs: CachedInputs,
        vae_config: Any,
        *,
        first_step: int,
        end_step: int,
        rows: int | None,
        pinned: bool,
        clock: Clock,
    ) -> None:
        self._cached_inputs, self._vae_config, self._pinned, self._clock = cached_inputs, vae_config, pinned, clock
        self._rows, self._steps = rows, range(first_step, end_step)
        self.waited_s = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._passes = self._make()
        self._next = self._begin()

    def take(self) -> ReadyPass:
        """Return the next pass. Raises what its making raised, and IndexError when there is none left."""
        began_s = self._clock()
        ready = self._next.result()
        self.waited_s += self._clock() - began_s
        if ready is None:
            raise IndexError("all passes were taken")
        self._next = self._begin()
        return ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _begin(self) -> Future[ReadyPass | None]:
        return self._thread.submit(next, self._passes, None)

    @torch.no_grad()
    def _make(self) -> Iterator[ReadyPass]:
        draws = self._cached_inputs.draws
        for step in self._steps:
            passes = draws.passes(step, self._rows)
            pictures = sum(map(len, passes))
            for drawn in passes:
                batch = assemble(draws, drawn, self._cached_inputs.latents, self._vae_config)
                yield ReadyPass(
                    step=step,
                    batch=batch.pinned() if self._pinned else batch,
                    captions=tuple(draws.caption(draw) for draw in drawn),
                    share=len(drawn) / pictures,
                    role=draws.role_of(drawn),
                )


WHOLE = 1.0 - 1e-9  # of a step; the shares are rounded
BATCH = "batch."
"""The prefix of a batch's tensors among the inputs of a pass."""
Embed = Callable[[tuple[str, ...]], Embedding]


def optimizer_of(adapters: Adapters, spec: TrainSpec, tokens: NewTokens | None = None) -> AdapterOptimizer:
    """Return the job's optimizer over the adapter and, among its parameters, the new tokens. Parameters of the text
    encoders have their own learning rate, and so may blocks of the UNet."""
    groups = [
        ParameterGroup(
            learning_rate=rate.learning_rate,
            parameters={name: adapters.parameters[name] for name in names},
            stop_step=rate.stop_step,
            settle=tokens.settle if rate.kind == TOKENS and tokens is not None else None,
        )
        for rate, names in by_rate(spec, adapters.parameters).items()
    ]
    return AdapterOptimizer(groups, spec, settle=norm_limit(adapters.parameters, spec))


def encoded(base: BaseModel, spec: TrainSpec, texts: Sequence[str]) -> Embedding:
    """Encode a job's captions with the base model's text encoders."""
    return captions.encode(
        base.tokenizers,
        base.text_encoders,
        [spoken(spec, text) for text in texts],
        family=base.family,
        max_token_length=spec.max_token_length,
        truncation=spec.truncate_captions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """Carries out the optimizer steps of one job. The weights and moments live in the adapters and in `optimizer`.
    For `learning` and `dropping` see giornata.diffusion.adapter.lora.Adapters."""

    base: BaseModel
    spec: TrainSpec
    learning: Callable[[], AbstractContextManager[None]]
    objective: Objective
    embeddings: EmbeddingCache | None
    optimizer: JobOptimizer
    dropping: Dropping = field(default_factory=Dropping)
    make: Callable[[Pass], torch.Tensor] = Pass.plainly

    def step(self, step: int, feed: PassFeed) -> tuple[torch.Tensor, float]:
        """Make optimizer step number `step`, from 0, on the next passes of `feed`. Returns its mean loss (float32
        scalar, on the device, not waited for) and its learning rate."""
        return self.gradients(step, feed), self.update(step)

    def gradients(self, step: int, feed: PassFeed) -> torch.Tensor:
        """Make the first part of a step: add up gradients, and leave weights and moments as they are. Returns the
        mean loss."""
        losses, shares = [], 0.0
        while shares < WHOLE:
            ready = feed.take()
            losses.append(self.make(self.one_pass(ready, step)))
            shares += ready.share
        return torch.stack(losses).sum()

    def one_pass(self, ready: ReadyPass, step: int) -> Pass:
        """Return a forward and backward pass. Embeddings are among its inputs where the text encoders are frozen."""
        inputs = named_tensors(BATCH, ready.batch.to(self.base.device))
        if self.spec.train_text_encoder or self.spec.train_text_encoder_ti:
            return Pass(inputs=inputs, run=partial(self._run, ready, partial(self._embedding, step=step)))
        for texts, name in self._texts(ready).items():
            inputs |= named_tensors(name, self._embedding(texts, step))
        return Pass(inputs=inputs, run=partial(self._run, ready, None), fixed=(ready.share, ready.role))

    def _texts(self, ready: ReadyPass) -> dict[tuple[str, ...], str]:
        """Return the captions that condition a pass, each with its embedding's name among the inputs. With
        prior_prediction the base alone is asked before."""
        if not self.spec.prior_prediction:
            return {ready.captions: "said."}
        prior = (str(self.spec.class_prompt),) * len(ready.captions)
        return {prior: "prior.", (*ready.captions, *prior): "said."}

    def _run(self, ready: ReadyPass, embed: Embed | None, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run forward and backward; see Pass. Without `embed` the embeddings are those among the inputs."""
        given = {} if embed else {t: part_of(Embedding, name, inputs) for t, name in self._texts(ready).items()}
        batch = part_of(NoisyBatch, BATCH, inputs)
        # The backward pass, too, which may compute the forward one again.
        with self.learning(), self.dropping.during(self._tickets(batch)):
            loss = self._loss(batch, ready, embed or given.__getitem__) * ready.share
            loss.backward()
        return loss.detach()

    def update(self, step: int) -> float:
        """Make the second part of a step: apply the gradients to the weights. Returns the learning rate."""
        return self.optimizer.step(step)

    def forget_gradients(self) -> None:
        """Drop the gradients that `gradients` has added up."""
        self.optimizer.forget_gradients()

    def _tickets(self, batch: NoisyBatch) -> torch.Tensor | None:
        """Return the tickets of all pictures that the adapter sees in this pass."""
        tickets_B5 = batch.tickets_B5
        if tickets_B5 is None or not self.spec.prior_prediction:
            return tickets_B5
        return torch.cat([tickets_B5, tickets_B5])

    def _loss(self, batch: NoisyBatch, ready: ReadyPass, embed: Embed) -> torch.Tensor:
        """Return the loss of a pass. With prior_prediction each picture is looked at once more, under the class
        prompt."""
        texts, prior_BCHW = ready.captions, None
        if self.spec.prior_prediction:
            prior = (str(self.spec.class_prompt),) * len(texts)
            prior_BCHW = self._as_the_base_sees(batch, prior, embed)
            batch, texts = batch.twice(), (*texts, *prior)
        loss_B = self.objective.each(self.base.unet, batch, embed(texts), prior_BCHW=prior_BCHW)
        return self.objective.total(loss_B, ready.role)

    def _as_the_base_sees(self, batch: NoisyBatch, texts: tuple[str, ...], embed: Embed) -> torch.Tensor:
        base = self.base
        with adapters_off((base.unet, *base.text_encoders)):
            return self.objective.predict(base.unet, batch, embed(texts))

    def _embedding(self, texts: Sequence[str], step: int) -> Embedding:
        if self.embeddings is not None:
            return self.embeddings.batch(texts)
        with torch.set_grad_enabled(self._text_encoders_learn(step) and torch.is_grad_enabled()):
            return encoded(self.base, self.spec, texts)

    def _text_encoders_learn(self, step: int) -> bool:
        spec, stop = self.spec, self.spec.stop_text_encoder_training
        adapters_learn = spec.train_text_encoder and (stop is None or step < stop)
        return adapters_learn or (spec.train_text_encoder_ti and step < learning_steps(spec))
