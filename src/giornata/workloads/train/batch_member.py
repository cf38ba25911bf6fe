"""One job in a shared batch: its inputs, its results, and its own steps.

Shapes: B the job's rows of the batch; C, H, W of the latents.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from giornata.diffusion.adapter.slots import AdapterSlot
from giornata.diffusion.encode import captions
from giornata.diffusion.encode.captions import Embedding, EmbeddingCache
from giornata.diffusion.optim.objective import NoisyBatch, Objective
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import Outcome
from giornata.workloads.train.attempt import TrainingAttempt
from giornata.workloads.train.device.graphs import Graphs
from giornata.workloads.train.preparation import Prepared
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter
from giornata.workloads.train.results.step_metrics import CheckpointSchedule, StepMeter
from giornata.workloads.train.steps import PassFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberBatch:
    """A job's part of one batch. `embedding` is None when the text encoders learn: they run for all jobs together."""

    batch: NoisyBatch
    shown_BCHW: torch.Tensor
    texts: Sequence[str]
    embedding: Embedding | None


@dataclass(slots=True, kw_only=True, eq=False)
class BatchMember:
    """A job in a slot. `step` counts its optimizer steps that are done, `micro` the micro-batches since; `begun` is
    whether it has been in a batch.

    `threads` closes the feed and the writer, which have one each, and `live`, where trackers hear of the steps.
    """

    attempt: TrainingAttempt
    prepared: Prepared
    feed: PassFeed
    embeddings: EmbeddingCache | None
    slot: AdapterSlot
    optimizer: SlotOptimizer
    writer: CheckpointWriter
    objective: Objective
    pace: CheckpointSchedule
    meter: StepMeter
    graphs: Graphs
    live: ExitStack
    threads: ExitStack
    step: int
    micro: int = 0
    begun: bool = False
    losses: list[torch.Tensor] = field(default_factory=list)

    @property
    def spec(self) -> TrainSpec:
        """Return the spec that the job submitted."""
        return self.attempt.spec

    @property
    def is_done(self) -> bool:
        """Return True when all steps of the job are made."""
        return self.step >= self.spec.max_train_steps

    def rows(self) -> MemberBatch:
        """Return the job's rows for the next batch, as a job that trains alone would draw them."""
        ready = self.feed.take()
        batch, texts = ready.batch.to(self.attempt.base.device), ready.captions
        return MemberBatch(
            batch=batch,
            shown_BCHW=self.objective.shown(batch),
            texts=texts,
            embedding=None if self.spec.train_text_encoder else self._embedding(texts),
        )

    def _embedding(self, texts: Sequence[str]) -> Embedding:
        if self.embeddings is not None:
            return self.embeddings.batch(texts)
        base = self.attempt.base
        with torch.no_grad():
            return captions.encode(
                base.tokenizers,
                base.text_encoders,
                texts,
                family=base.family,
                max_token_length=self.spec.max_token_length,
                truncation=self.spec.truncate_captions,
            )

    def note(self, composition: dict[str, Any]) -> None:
        """Record, before a batch that the job is in, what its bits depend on besides what it brought along."""
        if self.begun:
            self.writer.changed(self.step, self.writer.fingerprint | composition, micro=self.micro)
        else:
            self.attempt.begin(self.prepared, self.writer, **composition)
        self.begun = True

    def learn(self, loss: torch.Tensor) -> None:
        """Count a micro-batch with this loss, after its backward pass: make the optimizer step when it was the last
        one, and do what the agent requests between two steps. Raises Stopped or WorkloadFailed."""
        self.losses.append(loss.detach())
        self.micro += 1
        if self.micro < self.spec.gradient_accumulation_steps:
            return
        rate = self.optimizer.step(self.step)
        self.step += 1
        loss = torch.stack(self.losses).mean()
        self.meter.add(self.step, learning_rate=rate, loss=loss, scaled=self.optimizer.scaled)
        self.micro = 0
        self.losses.clear()
        self.pace.written(self.writer.look())
        self.attempt.obey(self.step, self.save, due=self.is_done or self.pace.due(self.step), writer=self.writer)

    def save(self, step: int) -> None:
        """Write a checkpoint of this step, and start the next checkpoint interval."""
        self.meter.flush()
        self.pace.begun(self.writer.write(step, self.slot.adapters, self.optimizer))
        self.meter.resume()

    def finish(self) -> Outcome:
        """Settle the last checkpoint, and write the job's result files."""
        self.live.close()
        self.writer.settle()
        return self.attempt.finish(self.slot.adapters, self.optimizer, self.writer, self.prepared, self.graphs)

    def close(self, error: BaseException | None) -> None:
        """End the threads of the job. With an error nothing more is said of a checkpoint that could not be
        written."""
        self.threads.__exit__(None if error is None else type(error), error, None)


def side_by_side(given: Sequence[Embedding | None], like: Embedding) -> Embedding:
    """Join the embeddings of all places, and zeros in the shapes of `like` for those without."""
    pooled_BP = None  # of a family that pools no text
    if like.pooled_BP is not None:
        zeros_BP = torch.zeros_like(like.pooled_BP)
        found = [None if one is None else one.pooled_BP for one in given]
        pooled_BP = torch.cat([zeros_BP if one is None else one for one in found])
    zeros_BLD = torch.zeros_like(like.prompt_BLD)
    return Embedding(
        prompt_BLD=torch.cat([one.prompt_BLD if one else zeros_BLD for one in given]), pooled_BP=pooled_BP
    )
