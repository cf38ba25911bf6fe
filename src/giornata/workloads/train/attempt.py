"""One attempt at a training job, from the inputs to the files."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from giornata.diffusion.captions import too_long
from giornata.diffusion.checkpoint import (
    ADAPTER,
    Header,
    data_sha256,
    header_faults,
    read_checkpoint,
    read_header,
    refuse,
)
from giornata.diffusion.determinism import Fingerprint, differences, fingerprint
from giornata.diffusion.lora import Adapters, target_faults
from giornata.diffusion.models import BaseModel
from giornata.diffusion.objective import Objective, scheduler_of
from giornata.diffusion.optimizer_kinds import optimizer_fingerprint
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import Outcome, Reporter, Stopped, Wish
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train import class_images
from giornata.workloads.train.caching import Supplies, prepare
from giornata.workloads.train.exactness import exactness_of
from giornata.workloads.train.exporting import export
from giornata.workloads.train.feed import Feed
from giornata.workloads.train.keeping import Keeper, Learner, state_of
from giornata.workloads.train.material import Material, gather, refuse_if
from giornata.workloads.train.pace import Clock, Meter, Pace
from giornata.workloads.train.steps import Stepper, gradient_checkpointing
from giornata.workloads.train.wearing import LAYER, lora_layer, wearing

RESUMED_ELSEWHERE = "resumed-under-another-fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known of an attempt before the first step. `supplies` is None when no step is left."""

    instances: Material
    data_hash: str
    header: Header | None
    first_step: int
    supplies: Supplies | None
    fingerprint: Fingerprint


def _nothing() -> None:
    """Between two items of the caching phase an attempt that is alone has nothing else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Everything that is fixed for one attempt. `between` is called after each item of the caching phase."""

    start: Start
    spec: TrainSpec
    base: BaseModel
    reporter: Reporter
    clock: Clock
    between: Callable[[], None] = _nothing

    def run(self) -> Outcome:
        """Check, cache, train, export. Raises Stopped or WorkloadFailed."""
        ready = self.prepare()
        with (
            wearing(self.base, self.spec) as (adapters, optimizer),
            self.keeper(ready, **{LAYER: lora_layer(self.spec)}) as keeper,
        ):
            self.restore(adapters, optimizer, ready)
            if ready.supplies is not None:
                self._train(ready.supplies, adapters, optimizer, keeper, ready.first_step)
            keeper.settle()
            return self.finish(adapters, optimizer, keeper, ready)

    def prepare(self) -> "Prepared":
        """Everything that can be done before there is an adapter."""
        instances, classes = gather(self.start.inputs, self.spec)
        self._check(instances, classes)
        given = tuple(sample for one in (instances, classes) if one is not None for sample in one.samples)
        data_hash = data_sha256(given)
        header = self._resume_header(data_hash)
        total, first_step = self.spec.max_train_steps, 0 if header is None else header.step
        supplies, print_of_this = None, fingerprint(self.base.device) | optimizer_fingerprint(self.spec.optimizer)
        if first_step < total:
            materials, extra = self._materials(instances, classes)
            print_of_this |= extra
            supplies = prepare(
                self.base, self.spec, materials, seed=self._seed, first_step=first_step, tick=self._tick
            )
        elif header is not None and "class_pictures" in header.fingerprint:
            print_of_this["class_pictures"] = header.fingerprint["class_pictures"]  # none are needed any more
        return Prepared(
            instances=instances,
            data_hash=data_hash,
            header=header,
            first_step=first_step,
            supplies=supplies,
            fingerprint=print_of_this,
        )

    # ---- before the steps

    @property
    def _seed(self) -> int:
        if self.spec.seed is None:
            raise ValueError("a job's seed is set at submission")
        return self.spec.seed

    def objective(self) -> Objective:
        """What the job minimises on this base."""
        scheduler = scheduler_of(self.spec, self.base.noise_scheduler)
        return Objective.of(self.spec, scheduler, prediction_type=self._prediction_type, dtype=self.base.dtype)

    @property
    def _prediction_type(self) -> str:
        return self.spec.prediction_type or self.base.prediction_type

    def _objective_faults(self) -> list[Fault]:
        """What only the base model could tell."""
        faults = []
        if self.spec.rescale_betas_zero_snr and self._prediction_type == "epsilon":
            message = "the base model predicts epsilon, and of pure noise there is nothing to tell"
            hint = "set prediction_type v_prediction, or leave it out"
            faults.append(Fault(where="spec.rescale_betas_zero_snr", message=message, hint=hint))
        count = self.base.noise_scheduler.config.num_train_timesteps
        if self.spec.min_timestep >= count:
            message = f"the base model has only {count} timesteps"
            faults.append(Fault(where="spec.min_timestep", message=message, hint=f"choose one below {count}"))
        return faults

    def _check(self, instances: Material, classes: Material | None) -> None:
        """What can be told without computing anything."""
        refuse_if(self._objective_faults(), Reason.BAD_SPEC)
        refuse_if(target_faults(self.base.unet, self.spec.target_modules), Reason.BAD_SPEC)
        named = [(sample.name, sample.caption) for one in (instances, classes) if one for sample in one.samples]
        prompts = (("spec.class_prompt", self.spec.class_prompt), ("spec.instance_prompt", self.spec.instance_prompt))
        fields = [(where, prompt) for where, prompt in prompts if prompt is not None]
        refuse_if(too_long([*fields, *named], self.base.tokenizers))

    def _resume_header(self, data_hash: str) -> Header | None:
        """The checkpoint's header, checked before hours are spent on caching."""
        resume = self.start.resume
        if resume is None:
            return None
        header = read_header(resume.path)
        refuse(resume.path, header_faults(header, step=resume.step, spec=self.spec, data_hash=data_hash))
        return header

    def _materials(
        self, instances: Material, classes: Material | None
    ) -> tuple[tuple[Material, ...], dict[str, str]]:
        """Instances and, if wanted, class pictures; and the latter's hash when the base model drew them."""
        if not self.spec.with_prior_preservation:
            return (instances,), {}
        if classes is not None:
            return (instances, classes), {}
        drawn = class_images.obtain(
            self.base, self.spec, directory=self.start.directory, reporter=self.reporter, tick=self._tick
        )
        hashes = "".join(sample.sha256 for sample in drawn.samples)
        return (instances, drawn), {"class_pictures": hashlib.sha256(hashes.encode("ascii")).hexdigest()}

    def _tick(self, done: int, total: int) -> None:
        """Between the items of the caching phase: there is nothing to save yet, so every stop is a plain one."""
        self.between()
        self.reporter.phase("caching", done, total)
        wish = self.reporter.wish()
        if wish is Wish.CHECKPOINT:
            self.reporter.log("a checkpoint was asked for, and there is nothing new to save before the next step")
        if wish in {Wish.STOP, Wish.CHECKPOINT_AND_STOP}:
            raise Stopped(self.start.resume.step if self.start.resume else None)

    def restore(self, adapters: Adapters, optimizer: Learner, ready: Prepared) -> None:
        """Take over weights and state of the checkpoint that the attempt resumes from, if it does."""
        resume = self.start.resume
        if resume is None:
            return
        wanted = state_of(adapters, optimizer)
        checkpoint = read_checkpoint(
            resume.path, step=resume.step, spec=self.spec, data_hash=ready.data_hash, wanted=wanted
        )
        weights = {name: checkpoint.tensors[ADAPTER + name] for name in adapters.parameters}
        adapters.load(weights)
        optimizer.restore(resume.step, checkpoint.tensors)

    def keeper(self, ready: Prepared, **extra: Any) -> Keeper:
        """Who writes the checkpoints. `extra` goes into their fingerprint."""
        header, ours = ready.header, ready.fingerprint | extra
        history: tuple[dict[str, Any], ...] = ({"from_step": 0, "fingerprint": ours},)
        if header is not None:
            history = header.history
            changed = differences(header.fingerprint, ours)
            if changed:
                self.reporter.notice(RESUMED_ELSEWHERE, {"step": header.step, "differences": changed})
                history = (*history, {"from_step": header.step, "fingerprint": ours})
        return Keeper(
            spec=self.spec,
            data_hash=ready.data_hash,
            fingerprint=ours,
            history=history,
            directory=self.start.directory,
            reporter=self.reporter,
            clock=self.clock,
            announced=None if header is None else header.step,
        )

    # ---- the steps

    def _train(
        self, supplies: Supplies, adapters: Adapters, optimizer: Learner, keeper: Keeper, first_step: int
    ) -> None:
        spec, total = self.spec, self.spec.max_train_steps
        stepper = Stepper(
            base=self.base,
            spec=spec,
            objective=self.objective(),
            embeddings=supplies.embeddings,
            optimizer=optimizer,
        )
        pace, meter = self.instruments()

        def save(step: int) -> None:
            meter.flush()
            pace.begun(keeper.write(step, adapters, optimizer))
            meter.resume()

        self.reporter.phase("training", first_step, total)
        with gradient_checkpointing(self.base, spec.gradient_checkpointing), self.feed(supplies, first_step) as feed:
            for step in range(first_step + 1, total + 1):
                loss, rate = stepper.step(step - 1, feed)
                meter.add(step, learning_rate=rate, loss=loss)
                pace.written(keeper.look())
                self.obey(step, save, due=step == total or pace.due(step), keeper=keeper)

    def feed(self, supplies: Supplies, first_step: int, *, rows: int | None = None) -> Feed:
        """The passes of the steps that are left, `rows` pictures of each material at a time (None: all)."""
        return Feed(
            supplies,
            self.base.vae.config,
            first_step=first_step,
            end_step=self.spec.max_train_steps,
            rows=rows,
            pinned=self.base.device.type == "cuda",
            clock=self.clock,
        )

    def instruments(self) -> tuple[Pace, Meter]:
        """What says when a checkpoint is due, and what reports the steps."""
        pace = Pace(self.spec, mtbi_s=self.start.mtbi_s, max_at_risk_s=self.start.max_at_risk_s, clock=self.clock)
        meter = Meter(
            self.reporter,
            spec=self.spec,
            images_per_step=images_per_step(self.spec),
            device=self.base.device,
            clock=self.clock,
        )
        return pace, meter

    def obey(self, step: int, save: Callable[[int], None], *, due: bool, keeper: Keeper) -> None:
        """Between two steps: save if it is time or wished for, and stop if that is wished for."""
        wish = self.reporter.wish()
        if wish is Wish.STOP:
            raise Stopped(keeper.announced)
        if due or wish in {Wish.CHECKPOINT, Wish.CHECKPOINT_AND_STOP}:
            save(step)
        if wish is Wish.CHECKPOINT_AND_STOP:
            keeper.settle()
            raise Stopped(step)

    # ---- after the steps

    def finish(self, adapters: Adapters, optimizer: Learner, keeper: Keeper, ready: Prepared) -> Outcome:
        """Write the files of a job whose steps are done."""
        instances = ready.instances
        export(
            optimizer.result(),
            self.base,
            self.spec,
            captions=[sample.caption for sample in instances.samples],
            directory=self.start.directory,
            reporter=self.reporter,
            history=keeper.history,
        )
        summary = {
            "adapter_parameters": sum(parameter.numel() for parameter in adapters.parameters.values()),
            "data_sha256": keeper.data_hash,
            "exactness": exactness_of(keeper.history),
            "fingerprints": list(keeper.history),
            "images": images_per_step(self.spec) * self.spec.max_train_steps,
            "pictures": len(instances.samples),
            "seed": self._seed,
        }
        return Outcome(step=self.spec.max_train_steps, summary=summary)


def images_per_step(spec: TrainSpec) -> int:
    """Pictures that one optimizer step looks at, class pictures included."""
    halves = 2 if spec.with_prior_preservation else 1
    return spec.train_batch_size * spec.gradient_accumulation_steps * halves
