"""Several jobs in one batch on one frozen base: each learns as it would alone, in a place of its own.

Shapes: B rows of the whole batch, place by place; L, D, P as in giornata.diffusion.encode.captions.

The batch is as wide as a power of two of places, at least as many as there are jobs; places without a job compute
nothing that matters. What a job's bits depend on is written into its checkpoints: its place, the batch's width and
the rank that all are padded to. They do not depend on its neighbors: no operation of the base mixes rows, the
adapters' products are batched by place, and each job has a loss, a gradient and an optimizer of its own.

All pictures of a job's micro-batch go through the model at once, with the gradient checkpointing that the spec has.
Nothing is made smaller here: when memory gives out, the run ends for all. How a job was laid out when it was alone
(`memory_plan`) stays in its checkpoints, for when it is alone again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from giornata.diffusion.adapter.dropping import for_places
from giornata.diffusion.adapter.slots import AdapterSlot, AdapterSlots
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute, recomputing
from giornata.diffusion.encode import captions
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.optim.objective import NoisyBatch, answer
from giornata.diffusion.optim.slot_optimizer import SlotOptimizer
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.joint import rank_ceiling
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.objective import has_dropout
from giornata.protocol.training.optimization import CudaGraphs
from giornata.workloads.interface import BatchSession, Clock, Outcome, Reporter
from giornata.workloads.train.attach_adapter import LAYER, LEAN, load_init_lora, starts_from_file
from giornata.workloads.train.attempt import TrainingAttempt
from giornata.workloads.train.batch_member import BatchMember, MemberBatch, side_by_side
from giornata.workloads.train.device.graph_conditions import GRAPHS_OFF, Capturing, off, together_bytes
from giornata.workloads.train.device.graphs import Graphs, Pass, Watched, named_tensors, part_of
from giornata.workloads.train.device.layout import sizes_in_a_place
from giornata.workloads.train.device.memory_budget import MemoryBudget, MemoryPlan, unbounded
from giornata.workloads.train.faults import blamed
from giornata.workloads.train.preparation import Prepared
from giornata.workloads.train.results.exporting import JOINT

STANDSTILL_S = 0.5
"""While a newcomer's pictures are encoded the others make a step whenever they have stood still for so long."""

Parse = Callable[[Start], TrainSpec]
OF_ALL = frozenset({Reason.NODE_VRAM, Reason.NODE_DRIVER})
"""Failures of the device: they are never one job's alone."""


class RoundFailed(Exception):
    """An error of the shared batch that cannot be attributed to one job; its cause is what happened."""


class BatchTrainer:
    """Trains the session's jobs in one batch. `first` is the spec of any of them; they agree in what they share."""

    def __init__(
        self,
        base: BaseModel,
        first: TrainSpec,
        *,
        base_sha256: str,
        places: int,
        parse: Parse,
        clock: Clock,
        peak_flops_per_s: float | None,
        pack_worth_pixels: int,
        capturing: Capturing,
        budget_now: Callable[[], MemoryBudget | None],
    ) -> None:
        self._base, self._shared, self._parse, self._clock = base, first, parse, clock
        self._base_sha256, self._peak_flops_per_s = base_sha256, peak_flops_per_s
        self._pack_worth_pixels = pack_worth_pixels
        self._rank = rank_ceiling(first.rank)
        self._slots = AdapterSlots(base, first, count=places, rank=self._rank)
        self._members: list[BatchMember] = []
        self._rows = first.train_batch_size * (2 if first.with_prior_preservation else 1)
        self._session: BatchSession | None = None
        self._untold: list[str] = []
        self._graphs = self._capture(capturing, budget_now())
        self._composed: tuple[int, tuple[BatchMember, ...]] = (0, ())
        self._moved_s = clock()

    def run(self, session: BatchSession) -> None:
        """Train until the session has no jobs left. Raises what broke the batch for all, if something did."""
        self._session = session
        try:
            with self._slots, recomputing(self._base.unet, Recompute.of(self._shared.gradient_checkpointing)):
                self._let_in(session)
                while self._members:
                    self._round()
                    self._let_in(session)
        except RoundFailed as failed:
            raise failed.__cause__ or failed from None
        finally:
            for member in self._members:
                member.close(RoundFailed())

    def _capture(self, capturing: Capturing, budget: MemoryBudget | None) -> Graphs:
        """Make the graphs for all jobs that come. Each job can refuse them (`_make`)."""
        base, spec, slots = self._base, self._shared, self._slots
        memory_plan = MemoryPlan(recompute=Recompute.of(spec.gradient_checkpointing), rows=spec.train_batch_size)
        return capturing.graphs(
            base.device,
            spec.model_copy(update={"cuda_graphs": CudaGraphs.AUTO}),
            Watched.of(lambda: [slots.gradients_JM], self._state, base.device),
            notice=self._notice,
            log=self._untold.append,
            steps_left=capturing.rules.worth_steps,
            need_bytes=together_bytes(sizes_in_a_place(base, spec), spec, memory_plan, slots.count),
            budget=budget,
        )

    def _notice(self, name: str, data: dict[str, Any]) -> None:
        for member in self._members:
            member.attempt.reporter.notice(name, data)

    def _tell(self, attempt: TrainingAttempt) -> None:
        """Tell a new job why there are no graphs."""
        for line in self._untold:
            attempt.reporter.log(line)
        if attempt.spec.cuda_graphs is CudaGraphs.ON and self._graphs.why_not is not None:
            attempt.reporter.notice(GRAPHS_OFF, off(self._graphs.why_not))

    def _state(self) -> dict[str, torch.Tensor]:
        """Return the weights and moments of all jobs."""
        found = {"weights": self._slots.values_JM}
        for member in self._members:
            found |= {f"{member.slot.place}.{name}": each for name, each in member.optimizer.state().items()}
        return found

    # ---- coming and going

    def _let_in(self, session: BatchSession) -> None:
        while len(self._members) < self._slots.count and (entry := session.next()) is not None:
            start, reporter = entry
            try:
                with blamed():
                    self._begin_member(start, reporter)
            except RoundFailed:
                raise
            except Exception as error:  # noqa: BLE001 - the supervisor of this job: the others go on
                self._over(start, error)

    def _begin_member(self, start: Start, reporter: Reporter) -> None:
        """Prepare a job and give it the first free place. The others train on while its pictures are encoded."""
        attempt = self._attempt(start, reporter)
        ready = attempt.prepare()
        place = min(set(range(self._slots.count)) - {member.slot.place for member in self._members})
        slot = self._slots.assign(place, attempt.spec)
        threads = ExitStack()
        try:
            member = self._member(attempt, ready, slot, threads)
        except BaseException as error:
            threads.__exit__(type(error), error, None)
            slot.leave()
            raise
        if member is None:
            slot.leave()
            threads.close()
            return
        reporter.phase("training", ready.first_step, attempt.spec.max_train_steps)
        self._members.append(member)
        self._fit()

    def _attempt(self, start: Start, reporter: Reporter) -> TrainingAttempt:
        return TrainingAttempt(
            start=start,
            spec=self._parse(start),
            base=self._base,
            base_sha256=self._base_sha256,
            reporter=reporter,
            clock=self._clock,
            budget_of=unbounded,
            peak_flops_per_s=self._peak_flops_per_s,
            pack_worth_pixels=self._pack_worth_pixels,
            between=self._between,
        )

    def _member(
        self, attempt: TrainingAttempt, ready: Prepared, slot: AdapterSlot, threads: ExitStack
    ) -> BatchMember | None:
        """Return the job in its slot, as far as it is; None for one whose steps were done already, which has ended
        now."""
        if starts_from_file(attempt.spec, attempt.start):
            load_init_lora(self._base, attempt.spec, attempt.start.inputs, slot.adapters)
        optimizer = SlotOptimizer(slot, attempt.spec)
        threads.callback(ready.close)
        writer = threads.enter_context(attempt.writer(ready))
        attempt.restore(slot.adapters, optimizer, writer)
        if ready.cached_inputs is None:
            self._over(attempt.start, attempt.finish(slot.adapters, optimizer, writer, ready, None))
            return None
        feed = threads.enter_context(
            attempt.feed(ready.cached_inputs, ready.first_step, attempt.spec.train_batch_size)
        )
        pace, meter = attempt.instruments(writer, lambda: feed.waited_s, self._graphs)
        self._tell(attempt)
        live = threads.enter_context(ExitStack())
        live.enter_context(attempt.live(writer))
        return BatchMember(
            attempt=attempt,
            prepared=ready,
            feed=feed,
            embeddings=ready.cached_inputs.embeddings,
            slot=slot,
            optimizer=optimizer,
            writer=writer,
            objective=attempt.objective(),
            pace=pace,
            meter=meter,
            graphs=self._graphs,
            live=live,
            threads=threads,
            step=ready.first_step,
        )

    def _fit(self) -> None:
        """Choose the width for the present jobs, and move them into it."""
        if not self._members:
            return
        width = self._width(len(self._members))
        free = sorted(set(range(width)) - {member.slot.place for member in self._members})
        for member in self._members:
            if member.slot.place >= width:
                member.slot.move(free.pop(0))
        self._slots.set_width(width)
        self._members.sort(key=lambda member: member.slot.place)

    def _width(self, jobs: int) -> int:
        return min(self._slots.count, 1 << (jobs - 1).bit_length())

    def _composition(self, member: BatchMember) -> dict[str, int]:
        return {"place": member.slot.place, "width": self._slots.width, "rank": self._rank}

    def _over(self, start: Start, end: Outcome | Exception) -> None:
        if self._session is not None:
            self._session.ended(start, end)

    def _leave(self, member: BatchMember, end: Outcome | Exception) -> None:
        self._members.remove(member)
        member.close(end if isinstance(end, Exception) else None)
        member.slot.leave()
        self._over(member.attempt.start, end)

    # ---- one batch

    def _between(self) -> None:
        """Make a round when the present jobs have stood still for STANDSTILL_S while a newcomer is prepared."""
        if self._clock() - self._moved_s >= STANDSTILL_S:
            self._round()

    def _round(self) -> None:
        """Make a micro-batch of every present job, and the optimizer steps that are due after it."""
        rows = self._gather()
        if rows:
            self._fit()
            for member in rows:  # now it is certain who is here
                member.note({JOINT: self._composition(member), LAYER: LEAN})
            losses = self._compute(rows)
            for member, loss in losses.items():
                self._attend(member, loss)
        self._moved_s = self._clock()

    def _gather(self) -> dict[BatchMember, MemberBatch]:
        found = {}
        for member in list(self._members):
            try:
                with blamed():
                    found[member] = member.rows()
            except Exception as error:  # noqa: BLE001 - the supervisor of this job: the others go on
                self._fall(member, error)
        return found

    def _compute(self, rows: dict[BatchMember, MemberBatch]) -> dict[BatchMember, torch.Tensor]:
        """Run forward and backward. Returns each job's loss; the gradients are in its slot."""
        try:
            # A newcomer's pictures may be being encoded around this, without gradients.
            with blamed(), torch.enable_grad():
                losses = self._make(self._one_pass(rows))
        except Exception as error:
            raise RoundFailed from error
        return dict(zip(rows, losses.unbind(), strict=True))

    def _make(self, one: Pass) -> torch.Tensor:
        """Make the pass by graph, if no job in the batch has said off or has dropouts. Graphs hold for the present
        jobs, in their places."""
        composed = self._slots.width, tuple(self._members)
        if composed != self._composed:
            self._graphs.forget()
            self._composed = composed
        if any(member.spec.cuda_graphs is CudaGraphs.OFF or has_dropout(member.spec) for member in self._members):
            return one.plainly()
        return self._graphs.run(one)

    def _one_pass(self, rows: dict[BatchMember, MemberBatch]) -> Pass:
        """Return the pass of a micro-batch of all jobs. Embeddings are among its inputs where the text encoders are
        frozen."""
        inputs = self._shown({member.slot.place: each for member, each in rows.items()})
        texts = None
        if next(iter(rows.values())).embedding is None:
            texts = {member.slot.place: each.texts for member, each in rows.items()}
        for member, each in rows.items():
            inputs |= named_tensors(f"{member.slot.place}.", each.batch)
        places = {member.slot.place: member for member in rows}
        return Pass(inputs=inputs, run=partial(self._run, places, texts), fixed=tuple(places))

    def _run(
        self,
        members: dict[int, BatchMember],
        texts: dict[int, Sequence[str]] | None,
        inputs: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return losses_K of the jobs; see Pass."""
        batches = {place: part_of(NoisyBatch, f"{place}.", inputs) for place in members}
        with self._slots.on(), self._slots.dropping.during(self._tickets(batches)):
            losses = self._losses(members, batches, texts, inputs)
            accumulated = [member.spec.gradient_accumulation_steps for member in members.values()]
            parts = [loss / micros for loss, micros in zip(losses, accumulated, strict=True)]
            torch.stack(parts).sum().backward()
        return torch.stack(losses).detach()

    def _losses(
        self,
        members: dict[int, BatchMember],
        batches: dict[int, NoisyBatch],
        texts: dict[int, Sequence[str]] | None,
        inputs: Mapping[str, torch.Tensor],
    ) -> list[torch.Tensor]:
        embedding = part_of(Embedding, "said.", inputs) if texts is None else self._encoded(texts)
        shown_BCHW, timesteps_B, time_ids_B6 = (inputs[name] for name in ("shown", "timesteps", "time_ids"))
        answer_BCHW = answer(self._base.unet, shown_BCHW, timesteps_B, time_ids_B6, embedding)
        losses = []
        for place, member in members.items():
            of_slot_BCHW = answer_BCHW[place * self._rows : (place + 1) * self._rows]
            losses.append(member.objective.loss_of(of_slot_BCHW, batches[place]))
        return losses

    def _tickets(self, batches: Mapping[int, NoisyBatch]) -> torch.Tensor | None:
        """Return the dropout draws of each job, place by place."""
        given = [batches[place].tickets_B5 if place in batches else None for place in range(self._slots.width)]
        return for_places(given, self._rows, self._base.device)

    def _shown(self, rows: dict[int, MemberBatch]) -> dict[str, torch.Tensor]:
        """Return the UNet's inputs in all places, zeros in those without a job; embeddings where they are known."""
        like = next(iter(rows.values()))
        shown, timesteps, time_ids = [], [], []
        for place in range(self._slots.width):
            given = rows.get(place)
            shown.append(given.shown_BCHW if given else torch.zeros_like(like.shown_BCHW))
            timesteps.append(given.batch.timesteps_B if given else torch.zeros_like(like.batch.timesteps_B))
            time_ids.append(given.batch.time_ids_B6 if given else torch.zeros_like(like.batch.time_ids_B6))
        found = {"shown": torch.cat(shown), "timesteps": torch.cat(timesteps), "time_ids": torch.cat(time_ids)}
        embeddings = [rows[place].embedding if place in rows else None for place in range(self._slots.width)]
        return (
            found
            if like.embedding is None
            else found | named_tensors("said.", side_by_side(embeddings, like.embedding))
        )

    def _encoded(self, texts: Mapping[int, Sequence[str]]) -> Embedding:
        """Encode with text encoders that learn, for all jobs together."""
        nothing = [""] * self._rows
        said = [text for place in range(self._slots.width) for text in texts.get(place, nothing)]
        return captions.encode(
            self._base.tokenizers,
            self._base.text_encoders,
            said,
            family=self._base.family,
            max_token_length=self._shared.max_token_length,
            truncation=True,  # of jobs that do not ask for it nothing is too long: each was checked when it came
        )

    def _attend(self, member: BatchMember, loss: torch.Tensor) -> None:
        """Do a job's own part after the batch: its step, its requests, its end."""
        try:
            with blamed():
                member.learn(loss)
                outcome = member.finish() if member.is_done else None
        except Exception as error:  # noqa: BLE001 - the supervisor of this job: the others go on
            self._fall(member, error)
        else:
            if outcome is not None:
                self._leave(member, outcome)

    def _fall(self, member: BatchMember, error: Exception) -> None:
        """End a job before its time: stopped, or by its own fault. A fault of the device ends the batch for all."""
        if isinstance(error, WorkloadFailed) and error.reason in OF_ALL:
            raise RoundFailed from error
        self._leave(member, error)
