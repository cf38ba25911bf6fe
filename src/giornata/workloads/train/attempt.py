"""Runs one attempt at a training job, from the inputs to the files."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from giornata.diffusion.adapter.lora import Adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import recomputing
from giornata.diffusion.draws.determinism import differences
from giornata.diffusion.optim.objective import Objective, scheduler_of
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.interface import AgentRequest, Clock, Outcome, Reporter, Stopped
from giornata.workloads.train.attach_adapter import attach_adapter, layer_entries, lora_layer
from giornata.workloads.train.device.compiling import NO_CACHE, Compiler, Kernels
from giornata.workloads.train.device.graph_conditions import CAPTURING, Capturing
from giornata.workloads.train.device.graphs import Graphs, Watched
from giornata.workloads.train.device.memory_budget import (
    BudgetOf,
    MemoryPlan,
    budget_of,
    to_fingerprint,
    why_not_drawn,
    without_footprint,
)
from giornata.workloads.train.inputs.encoding import CachedInputs
from giornata.workloads.train.inputs.encoding_cache import WORTH_PIXELS
from giornata.workloads.train.oom_retry import OomRetry
from giornata.workloads.train.preparation import Prepared, prediction_type_of, prepare, seed_of
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter, begin_again, state_of
from giornata.workloads.train.results.exporting import exactness_of, export, write_page
from giornata.workloads.train.results.fleet_sheets import FleetSheets
from giornata.workloads.train.results.held_out import HeldOutEvaluator, validation_of
from giornata.workloads.train.results.sampling import SampleRenderer, TrackedSheets
from giornata.workloads.train.results.step_metrics import CheckpointSchedule, StepMeter, gauges_of, images_per_step
from giornata.workloads.train.results.tracking import TrackerContext, live_curves, report
from giornata.workloads.train.steps import PassFeed, Stepper

RESUMED_ELSEWHERE = "resumed-under-another-fingerprint"


def _nothing() -> None:
    """Do nothing between two items of the caching phase, as in an attempt that is alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAttempt:
    """The parts of one attempt that are fixed from its start. `between` is called after each item of the caching
    phase."""

    start: Start
    spec: TrainSpec
    base: BaseModel
    base_sha256: str
    reporter: Reporter
    clock: Clock
    budget_of: BudgetOf = budget_of
    peak_flops_per_s: float | None = None
    pack_worth_pixels: int = WORTH_PIXELS
    compiler: Compiler = NO_CACHE
    capturing: Capturing = CAPTURING
    between: Callable[[], None] = _nothing
    fleet_sheets: FleetSheets = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fleet_sheets", FleetSheets(spec=self.spec, job=self.start.job))

    def run(self) -> Outcome:
        """Check, cache, train, export. Raises Stopped or WorkloadFailed."""
        ready = self.prepare()
        layer = lora_layer(self.base, self.spec)
        kernels = self._kernels(ready, layer)
        with (
            closing(ready),
            attach_adapter(self.base, self.spec, self.start) as (adapters, optimizer),
            self.writer(ready) as writer,
        ):
            self.restore(adapters, optimizer, writer)
            self.fleet_sheets.resume(self.reporter, done=ready.first_step, result=optimizer.result)
            watched = Watched.of(optimizer.gradients, partial(state_of, adapters, optimizer), self.base.device)
            left = self.spec.max_train_steps - ready.first_step
            graphs = self.capturing.alone(self.base, self.spec, ready.layout, watched, self.reporter, steps_left=left)
            if ready.cached_inputs is not None:
                self.begin(ready, writer, **kernels.entry, **layer_entries(layer, self.spec))
                steps = partial(
                    self._train,
                    ready,
                    ready.cached_inputs,
                    adapters,
                    optimizer,
                    writer,
                    kernels=kernels,
                    graphs=graphs,
                )
                undo = partial(begin_again, optimizer, writer, kernels, ready.first_step)
                with self.live(writer):
                    kernels.carry_out(steps, undo=undo)
            graphs.forget()
            writer.settle()
            return self.finish(adapters, optimizer, writer, ready, graphs)

    def prepare(self) -> Prepared:
        """Do everything that can be done before there is an adapter."""
        return prepare(
            self.base,
            self.spec,
            self.start,
            base_sha256=self.base_sha256,
            reporter=self.reporter,
            budget_of=self.budget_of,
            worth_pixels=self.pack_worth_pixels,
            objective=self.objective,
            tick=self._tick,
        )

    # ---- before the steps

    def _kernels(self, ready: Prepared, layer: str) -> Kernels:
        return Kernels(
            self.compiler,
            self.base,
            self.spec,
            ready.layout.memory_plan,
            layer=layer,
            header=ready.header,
            reporter=self.reporter,
            directory=self.start.directory,
        )

    def _tick(self, done: int, total: int) -> None:
        """Report the item and obey the agent between the items of the caching phase: there is nothing to save yet, so
        every stop is a plain one."""
        self.between()
        self.reporter.phase("caching", done, total)
        agent_request = self.reporter.agent_request()
        if agent_request is AgentRequest.CHECKPOINT:
            self.reporter.log("a checkpoint was asked for, and there is nothing new to save before the next step")
        if agent_request in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}:
            raise Stopped(self.start.resume.step if self.start.resume else None)

    def restore(self, adapters: Adapters, optimizer: JobOptimizer, writer: CheckpointWriter) -> None:
        """Take over weights, state and losses of the checkpoint that the attempt resumes from, if it does."""
        if (resume := self.start.resume) is not None:
            writer.restore(resume.path, resume.step, adapters, optimizer)

    def writer(self, ready: Prepared) -> CheckpointWriter:
        """Return the checkpoint writer; `begin` tells it afterwards what the checkpoints' bits depend on."""
        header = ready.header
        return CheckpointWriter(
            spec=self.spec,
            data_hash=ready.data_hash,
            base_sha256=self.base_sha256,
            history=() if header is None else header.history,
            directory=self.start.directory,
            reporter=self.reporter,
            clock=self.clock,
            announced=None if header is None else header.step,
            family=self.base.family,
        )

    def begin(self, ready: Prepared, writer: CheckpointWriter, **extra: Any) -> None:
        """Record, before the first step of the attempt, what its bits depend on, and report where that differs from
        before. `extra` goes into the fingerprint.

        Not for an attempt without steps: its weights depend on what was before it alone.
        """
        ours = ready.fingerprint | extra
        if ready.header is not None and (changed := differences(ready.header.fingerprint, ours)):
            self.reporter.notice(RESUMED_ELSEWHERE, {"step": ready.first_step, "differences": changed})
        writer.changed(ready.first_step, ours)

    # ---- the steps

    def _train(
        self,
        ready: Prepared,
        cached_inputs: CachedInputs,
        adapters: Adapters,
        optimizer: JobOptimizer,
        writer: CheckpointWriter,
        *,
        kernels: Kernels,
        graphs: Graphs,
    ) -> None:
        spec, total = self.spec, self.spec.max_train_steps
        stepper = Stepper(
            base=self.base,
            spec=spec,
            learning=adapters.learning,
            objective=self.objective(),
            embeddings=cached_inputs.embeddings,
            optimizer=optimizer,
            dropping=adapters.dropping,
            make=kernels.checked(graphs.run, optimizer.gradients),
        )
        pace, meter = self.instruments(writer, lambda: oom_retry.waited_s, graphs)

        def save(step: int) -> None:
            meter.flush()
            pace.begun(writer.write(step, adapters, optimizer))
            meter.resume()

        def changed(step: int, memory_plan: MemoryPlan) -> None:
            ours = without_footprint(writer.fingerprint) | to_fingerprint(memory_plan, spec)
            writer.changed(step, ours, last_counts=True)
            pace.hasten()  # so that all later attempts hear of it

        first, feeds = ready.first_step, partial(self.feed, cached_inputs)
        self.reporter.phase("training", first, total)
        oom_retry = OomRetry(
            stepper, ready.layout, feeds, first_step=first, reporter=self.reporter, changed=changed, graphs=graphs
        )
        renderer = self._renderer(ready, adapters, writer)
        evaluator = HeldOutEvaluator(
            held_out=ready.held_out,
            adapters=adapters,
            optimizer=optimizer,
            writer=writer,
            meter=meter,
            reporter=self.reporter,
            clock=self.clock,
        )

        def show(step: int) -> None:
            """Draw what is due between this step and the next one."""
            if not renderer.is_time(step) and not self.is_last_call(step):
                return
            meter.flush()
            due = [(step, optimizer.result())] if renderer.is_time(step) else self.fleet_sheets.undrawn(self.reporter)
            for drawn_step, result in due:
                while (agent_request := renderer.after(drawn_step, result)) is not AgentRequest.GO_ON:
                    self._follow(agent_request, step, save, due=False, writer=writer)
            self.reporter.phase("training", step, total)
            meter.resume()

        with recomputing(self.base.unet, ready.layout.memory_plan.recompute), oom_retry:
            for step in range(first + 1, total + 1):
                show(step - 1)  # here, and not after the step: a checkpoint of it may be what this attempt had
                if (repeated := self.repeated_plan(step - 1)) is not None:
                    oom_retry.repeat(step - 1, repeated)
                loss, rate = oom_retry.step(step - 1)
                more = evaluator.after(step, loss)
                meter.add(step, learning_rate=rate, loss=loss, scaled=optimizer.scaled, more=more)
                kernels.settle()
                pace.written(writer.look())
                self.obey(step, save, due=step == total or pace.due(step), writer=writer)
                if self.fleet_sheets.is_ordered(step):
                    self.fleet_sheets.weights[step] = optimizer.result()
            show(total)

    def repeated_plan(self, step: int) -> MemoryPlan | None:
        """Return None: the plan follows from the device's memory. `step` counts the steps that are done."""
        del step
        return None

    def is_last_call(self, step: int) -> bool:
        """Return True when sheets of the fleet are due: the next step makes another one, or there is none."""
        is_last = step == self.spec.max_train_steps
        return bool(self.fleet_sheets.weights) and (is_last or self.fleet_sheets.is_ordered(step + 1))

    def objective(self) -> Objective:
        """Return the objective that the job minimizes on this base."""
        scheduler = scheduler_of(self.spec, self.base.noise_scheduler)
        prediction_type = prediction_type_of(self.base, self.spec)
        return Objective.of(self.spec, scheduler, prediction_type=prediction_type, dtype=self.base.dtype)

    def feed(self, cached_inputs: CachedInputs, first_step: int, rows: int) -> PassFeed:
        """Return the passes of the steps from `first_step` on, `rows` pictures of each sample set at a time."""
        return PassFeed(
            cached_inputs,
            self.base.vae.config,
            first_step=first_step,
            end_step=self.spec.max_train_steps,
            rows=rows,
            pinned=self.base.device.type == "cuda",
            clock=self.clock,
        )

    def instruments(
        self, writer: CheckpointWriter, waited_s: Callable[[], float], graphs: Graphs
    ) -> tuple[CheckpointSchedule, StepMeter]:
        """Return the cadence of checkpoints and the meter that reports steps; for `waited_s` see Gauges."""
        pace = CheckpointSchedule(
            self.spec, mtbi_s=self.start.mtbi_s, max_at_risk_s=self.start.max_at_risk_s, clock=self.clock
        )
        meter = StepMeter(
            self.reporter,
            spec=self.spec,
            images_per_step=images_per_step(self.spec),
            device=self.base.device,
            clock=self.clock,
            gauges=gauges_of(
                self.base,
                self.spec,
                waited_s=waited_s,
                peak_flops_per_s=self.peak_flops_per_s,
                by_graph=lambda: graphs.by_graph,
            ),
            losses=writer.losses,
        )
        return pace, meter

    def live(self, writer: CheckpointWriter) -> AbstractContextManager[object]:
        """Report to trackers while the steps go on."""
        return live_curves(
            self.start,
            self.spec,
            writer.losses,
            writer.validated,
            sheets=self._sheets(writer),
            origin=writer.origin,
            reporter=self.reporter,
            clock=self.clock,
        )

    def obey(self, step: int, save: Callable[[int], None], *, due: bool, writer: CheckpointWriter) -> None:
        """Save between two steps if a checkpoint is due or requested, and stop if a stop is requested."""
        self._follow(self.reporter.agent_request(), step, save, due=due, writer=writer)

    def _follow(
        self,
        agent_request: AgentRequest,
        step: int,
        save: Callable[[int], None],
        *,
        due: bool,
        writer: CheckpointWriter,
    ) -> None:
        if agent_request is AgentRequest.STOP:
            raise Stopped(writer.announced)
        requested = agent_request in {AgentRequest.CHECKPOINT, AgentRequest.CHECKPOINT_AND_STOP}
        if due or (requested and writer.newest != step):
            save(step)
        if agent_request is AgentRequest.CHECKPOINT_AND_STOP:
            writer.settle()
            raise Stopped(step)

    def attend(self, writer: CheckpointWriter) -> None:
        """Raise Stopped when the attempt is to end. All steps are stored: there is nothing more to save."""
        if self.reporter.agent_request() in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}:
            raise Stopped(writer.announced)

    def finish(
        self,
        adapters: Adapters,
        optimizer: JobOptimizer,
        writer: CheckpointWriter,
        ready: Prepared,
        graphs: Graphs | None,
    ) -> Outcome:
        """Write the files of a job whose steps are done."""
        captions = [sample.caption for sample in ready.instances.samples]
        result = optimizer.result()
        exported = export(
            result,
            self.base,
            self.spec,
            captions=captions,
            directory=self.start.directory,
            reporter=self.reporter,
            history=writer.history,
            data_sha256=writer.data_hash,
            base_sha256=self.base_sha256,
        )
        attend = partial(self.attend, writer)
        samples = self._renderer(ready, adapters, writer).at_the_end(result, attend=attend)
        write_page(exported, samples=samples, directory=self.start.directory, reporter=self.reporter)
        context = TrackerContext(
            job=self.start.job,
            directory=self.start.directory,
            origin=exported.origin,
            api_key=self.start.wandb_api_key,
            clock=self.clock,
            attend=attend,
        )
        sheets = self._sheets(writer)
        if self.spec.report_to:
            self.fleet_sheets.fetch(self.reporter, done=self.spec.max_train_steps)
        report(self.spec, writer.losses, context, self.reporter, validated=writer.validated, sheets=sheets)
        summary = {
            "adapter_parameters": sum(parameter.numel() for parameter in adapters.parameters.values()),
            "base_sha256": self.base_sha256,
            "cuda_graphs": None if graphs is None else graphs.facts(),
            "data_sha256": writer.data_hash,
            "exactness": exactness_of(writer.history),
            "fingerprints": list(writer.history),
            "images": images_per_step(self.spec) * self.spec.max_train_steps,
            "pictures": len(captions),
            "seed": seed_of(self.spec),
            **validation_of(self.spec, writer.validated),
        }
        return Outcome(step=self.spec.max_train_steps, summary=summary)

    def _sheets(self, writer: CheckpointWriter) -> TrackedSheets:
        return TrackedSheets(base=self.base, spec=self.spec, album=writer.album, fleet=self.fleet_sheets)

    def _renderer(self, ready: Prepared, adapters: Adapters, writer: CheckpointWriter) -> SampleRenderer:
        return SampleRenderer(
            base=self.base,
            spec=self.spec,
            adapters=adapters,
            directory=self.start.directory,
            reporter=self.reporter,
            album=writer.album,
            too_large=why_not_drawn(ready.layout.sizes, self.budget_of(self.base.device)),
        )
