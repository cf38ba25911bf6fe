"""One attempt at a training job, from the inputs to the files."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from giornata.diffusion.adapter_plan import plan_faults
from giornata.diffusion.captions import too_long
from giornata.diffusion.checkpoint import (
    ADAPTER,
    Header,
    base_faults,
    data_sha256,
    header_faults,
    read_checkpoint,
    read_header,
    refuse,
)
from giornata.diffusion.determinism import Fingerprint, differences, fingerprint
from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.objective import Objective, scheduler_of
from giornata.diffusion.optimizer import AdapterOptimizer
from giornata.diffusion.optimizer_kinds import optimizer_fingerprint
from giornata.diffusion.recompute import recomputing
from giornata.diffusion.tokens import add_tokens, spoken, unsaid
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import Outcome, Reporter, Stopped, Wish
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train import class_images
from giornata.workloads.train.caching import Supplies, prepare
from giornata.workloads.train.exporting import export
from giornata.workloads.train.feed import Feed
from giornata.workloads.train.fit import RoomOf, room_of, unbounded
from giornata.workloads.train.footprint import Footprint, to_fingerprint, without_footprint
from giornata.workloads.train.gauges import gauges_of
from giornata.workloads.train.init_lora import check_init_lora, load_init_lora
from giornata.workloads.train.keeping import Keeper, state_of
from giornata.workloads.train.layout import Layout, lay_out
from giornata.workloads.train.material import Material, gather, refuse_if
from giornata.workloads.train.pace import Clock, Meter, Pace
from giornata.workloads.train.packs import WORTH_PIXELS, Shelf
from giornata.workloads.train.relief import Relief
from giornata.workloads.train.steps import Stepper, optimizer_of
from giornata.workloads.train.tracking import LOSSES, losses_to_keep, report

RESUMED_ELSEWHERE = "resumed-under-another-fingerprint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Everything that is fixed for one attempt."""

    start: Start
    spec: TrainSpec
    base: BaseModel
    base_sha256: str
    reporter: Reporter
    clock: Clock
    room_of: RoomOf = room_of
    peak_flops_per_s: float | None = None
    pack_worth_pixels: int = WORTH_PIXELS

    def run(self) -> Outcome:
        """Check, cache, train, export. Raises Stopped or WorkloadFailed."""
        instances, classes = gather(self.start.inputs, self.spec)
        self._check(instances, classes)
        given = tuple(sample for one in (instances, classes) if one is not None for sample in one.samples)
        data_hash = data_sha256(given)
        header = self._resume_header(data_hash)
        total, first_step = self.spec.max_train_steps, 0 if header is None else header.step
        layout = lay_out(
            self.base, self.spec, self.room_of if first_step < total else unbounded, self.reporter, header
        )
        supplies, print_of_this = None, fingerprint(self.base.device) | optimizer_fingerprint(self.spec.optimizer)
        print_of_this |= to_fingerprint(layout.footprint, self.spec)
        if first_step < total:
            materials, extra = self._materials(instances, classes)
            print_of_this |= extra
            shelf = Shelf(reporter=self.reporter, directory=self.start.directory, worth_pixels=self.pack_worth_pixels)
            supplies = prepare(
                self.base,
                self.spec,
                materials,
                seed=self._seed,
                first_step=first_step,
                tick=self._tick,
                shelf=shelf,
            )
        elif header is not None and "class_pictures" in header.fingerprint:
            print_of_this["class_pictures"] = header.fingerprint["class_pictures"]  # none are needed any more
        with (
            add_tokens(self.base, self.spec) as tokens,
            add_adapters(self.base, self.spec) as put_on,
            self._keeper(data_hash, print_of_this, header) as keeper,
        ):
            if self._starts_from_file:
                load_init_lora(self.base, self.spec, self.start.inputs, put_on)
            adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
            optimizer = optimizer_of(adapters, self.spec, tokens)
            keeper.losses += self._restore(adapters, optimizer, data_hash)
            if supplies is not None:
                self._train(supplies, adapters, optimizer, keeper, first_step=first_step, layout=layout)
            keeper.settle()
            return self._finish(adapters, optimizer, keeper, instances)

    # ---- before the steps

    @property
    def _starts_from_file(self) -> bool:
        """A resume has in its checkpoint what became of that file."""
        return self.spec.init_lora is not None and self.start.resume is None

    @property
    def _seed(self) -> int:
        if self.spec.seed is None:
            raise ValueError("a job's seed is set at submission")
        return self.spec.seed

    def _objective(self) -> Objective:
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
        if self.spec.prior_prediction and self._prediction_type != self.base.prediction_type:
            message = f"the base model predicts {self.base.prediction_type}, which is what it could be held to"
            hint = "leave prediction_type out, or choose class pictures instead of prior_prediction"
            faults.append(Fault(where="spec.prior_prediction", message=message, hint=hint))
        count = self.base.noise_scheduler.config.num_train_timesteps
        if self.spec.min_timestep >= count:
            message = f"the base model has only {count} timesteps"
            faults.append(Fault(where="spec.min_timestep", message=message, hint=f"choose one below {count}"))
        return faults

    def _check(self, instances: Material, classes: Material | None) -> None:
        """What can be told without computing anything."""
        refuse_if(self._objective_faults(), Reason.BAD_SPEC)
        refuse_if(plan_faults(self.base.unet, self.base.text_encoders, self.spec), Reason.BAD_SPEC)
        named = [(sample.name, sample.caption) for one in (instances, classes) if one for sample in one.samples]
        prompts = (("spec.class_prompt", self.spec.class_prompt), ("spec.instance_prompt", self.spec.instance_prompt))
        fields = [(where, prompt) for where, prompt in prompts if prompt is not None]
        refuse_if(unsaid(self.spec, [sample.caption for sample in instances.samples]), Reason.BAD_SPEC)
        heard = [(where, spoken(self.spec, caption)) for where, caption in (*fields, *named)]
        refuse_if(too_long(heard, self.base.tokenizers))
        if self._starts_from_file:
            check_init_lora(self.base, self.spec, self.start.inputs)

    def _resume_header(self, data_hash: str) -> Header | None:
        """The checkpoint's header, checked before hours are spent on caching."""
        resume = self.start.resume
        if resume is None:
            return None
        header = read_header(resume.path)
        # Blamed on nobody yet: it may be this node's copy, or the hub's branch. A second machine should have a look.
        refuse(resume.path, base_faults(header, self.base_sha256), Reason.CRASHED)
        refuse(resume.path, header_faults(header, step=resume.step, spec=self.spec, data_hash=data_hash))
        return header

    def _materials(
        self, instances: Material, classes: Material | None
    ) -> tuple[tuple[Material, ...], dict[str, str]]:
        """Instances and, if wanted, class pictures; and the latter's hash when the base model drew them."""
        if not self.spec.with_prior_preservation or self.spec.prior_prediction:
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
        self.reporter.phase("caching", done, total)
        wish = self.reporter.wish()
        if wish is Wish.CHECKPOINT:
            self.reporter.log("a checkpoint was asked for, and there is nothing new to save before the next step")
        if wish in {Wish.STOP, Wish.CHECKPOINT_AND_STOP}:
            raise Stopped(self.start.resume.step if self.start.resume else None)

    def _restore(self, adapters: Adapters, optimizer: AdapterOptimizer, data_hash: str) -> list[float]:
        """Take over the checkpoint, if there is one. Returns the losses that it remembers."""
        resume = self.start.resume
        if resume is None:
            return []
        wanted = state_of(adapters, optimizer) | losses_to_keep(self.spec, [0.0] * resume.step)
        checkpoint = read_checkpoint(
            resume.path, step=resume.step, spec=self.spec, data_hash=data_hash, wanted=wanted
        )
        weights = {name: checkpoint.tensors[ADAPTER + name] for name in adapters.parameters}
        adapters.load(weights)
        optimizer.restore(resume.step, checkpoint.tensors)
        return checkpoint.tensors[LOSSES].tolist() if LOSSES in checkpoint.tensors else []

    def _keeper(self, data_hash: str, ours: Fingerprint, header: Header | None) -> Keeper:
        history: tuple[dict[str, Any], ...] = ({"from_step": 0, "fingerprint": ours},)
        if header is not None:
            history = header.history
            changed = differences(header.fingerprint, ours)
            if changed:
                self.reporter.notice(RESUMED_ELSEWHERE, {"step": header.step, "differences": changed})
                history = (*history, {"from_step": header.step, "fingerprint": ours})
        return Keeper(
            spec=self.spec,
            data_hash=data_hash,
            base_sha256=self.base_sha256,
            fingerprint=ours,
            history=history,
            directory=self.start.directory,
            reporter=self.reporter,
            clock=self.clock,
            announced=None if header is None else header.step,
            family=self.base.family,
        )

    # ---- the steps

    def _train(
        self,
        supplies: Supplies,
        adapters: Adapters,
        optimizer: AdapterOptimizer,
        keeper: Keeper,
        *,
        first_step: int,
        layout: Layout,
    ) -> None:
        spec, total = self.spec, self.spec.max_train_steps
        stepper = Stepper(
            base=self.base,
            spec=spec,
            objective=self._objective(),
            embeddings=supplies.embeddings,
            optimizer=optimizer,
        )
        feeds = partial(self._feed, supplies)
        pace = Pace(spec, mtbi_s=self.start.mtbi_s, max_at_risk_s=self.start.max_at_risk_s, clock=self.clock)
        meter = Meter(
            self.reporter,
            spec=spec,
            images_per_step=images_per_step(spec),
            device=self.base.device,
            clock=self.clock,
            gauges=gauges_of(
                self.base, spec, waited_s=lambda: relief.waited_s, peak_flops_per_s=self.peak_flops_per_s
            ),
            losses=keeper.losses,
        )

        def save(step: int) -> None:
            meter.flush()
            pace.begun(keeper.write(step, adapters, optimizer))
            meter.resume()

        def changed(step: int, footprint: Footprint) -> None:
            keeper.changed(step, without_footprint(keeper.fingerprint) | to_fingerprint(footprint, spec))
            pace.hasten()  # so that all later attempts hear of it

        self.reporter.phase("training", first_step, total)
        relief = Relief(stepper, layout, feeds, first_step=first_step, reporter=self.reporter, changed=changed)
        with recomputing(self.base.unet, layout.footprint.recompute), relief:
            for step in range(first_step + 1, total + 1):
                loss, rate = relief.step(step - 1)
                meter.add(step, learning_rate=rate, loss=loss)
                pace.written(keeper.look())
                self._obey(step, save, due=step == total or pace.due(step), keeper=keeper)

    def _feed(self, supplies: Supplies, first_step: int, rows: int) -> Feed:
        return Feed(
            supplies,
            self.base.vae.config,
            first_step=first_step,
            end_step=self.spec.max_train_steps,
            rows=rows,
            pinned=self.base.device.type == "cuda",
            clock=self.clock,
        )

    def _obey(self, step: int, save: Callable[[int], None], *, due: bool, keeper: Keeper) -> None:
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

    def _finish(
        self, adapters: Adapters, optimizer: AdapterOptimizer, keeper: Keeper, instances: Material
    ) -> Outcome:
        export(
            optimizer.result(),
            self.base,
            self.spec,
            captions=[sample.caption for sample in instances.samples],
            directory=self.start.directory,
            reporter=self.reporter,
            history=keeper.history,
            data_sha256=keeper.data_hash,
        )
        report(self.spec, keeper.losses, self.start.directory, self.reporter)
        summary = {
            "adapter_parameters": sum(parameter.numel() for parameter in adapters.parameters.values()),
            "base_sha256": self.base_sha256,
            "data_sha256": keeper.data_hash,
            "fingerprints": list(keeper.history),
            "images": images_per_step(self.spec) * self.spec.max_train_steps,
            "pictures": len(instances.samples),
            "seed": self._seed,
        }
        return Outcome(step=self.spec.max_train_steps, summary=summary)


def images_per_step(spec: TrainSpec) -> int:
    """Pictures that one optimizer step looks at, class pictures included."""
    halves = 2 if spec.with_prior_preservation and not spec.prior_prediction else 1
    return spec.train_batch_size * spec.gradient_accumulation_steps * halves
