"""Prepares an attempt: checks the job, its pictures and its checkpoint, then caches what the steps will need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from giornata.diffusion.adapter.adapter_plan import plan_faults
from giornata.diffusion.adapter.tokens import unsaid
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.determinism import Fingerprint, fingerprint
from giornata.diffusion.encode.captions import token_count, too_long
from giornata.diffusion.files.checkpoint import Header, base_faults, data_sha256, header_faults, read_header, refuse
from giornata.diffusion.optim.objective import Objective
from giornata.diffusion.optim.optimizer_kinds import optimizer_fingerprint
from giornata.domain.errors import Fault
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import longest_spoken, spoken
from giornata.workloads.interface import Reporter
from giornata.workloads.train.attach_adapter import check_init_lora, starts_from_file
from giornata.workloads.train.device.compiling import KERNELS
from giornata.workloads.train.device.layout import MemoryLayout, lay_out
from giornata.workloads.train.device.memory_budget import BudgetOf, to_fingerprint, unbounded
from giornata.workloads.train.inputs import class_images
from giornata.workloads.train.inputs.encoding import CachedInputs, Tick, cache_inputs, together_on
from giornata.workloads.train.inputs.encoding_cache import EncodingCache
from giornata.workloads.train.inputs.sample_set import SampleSet, load_samples, refuse_if
from giornata.workloads.train.results.held_out import HeldOut, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything about an attempt that is known before its first step. `cached_inputs` is None when no step is left;
    `held_out` is None then, and when nothing is held out."""

    instances: SampleSet
    data_hash: str
    header: Header | None
    first_step: int
    layout: MemoryLayout
    cached_inputs: CachedInputs | None
    fingerprint: Fingerprint
    held_out: HeldOut | None = None

    def close(self) -> None:
        """Give back the memory and disk of the cached inputs."""
        if self.cached_inputs is not None:
            self.cached_inputs.close()
        if self.held_out is not None:
            self.held_out.cached_inputs.close()


def prepare(
    base: BaseModel,
    spec: TrainSpec,
    start: Start,
    *,
    base_sha256: str,
    reporter: Reporter,
    budget_of: BudgetOf,
    worth_pixels: int,
    objective: Callable[[], Objective],
    tick: Tick,
) -> Prepared:
    """Do everything that can be done before there is an adapter. Raises WorkloadFailed, and what `tick` raises.

    An attempt that has no step left caches nothing. `worth_pixels` is that of the encoding cache.
    """
    seed, (instances, classes) = seed_of(spec), load_samples(start.inputs, spec)
    check(base, spec, start, instances, classes)
    data_hash = data_sha256(sample for one in (instances, classes) if one is not None for sample in one.samples)
    header = header_of(start, spec, data_hash=data_hash, base_sha256=base_sha256)
    first_step = 0 if header is None else header.step
    left = first_step < spec.max_train_steps
    instances, held = split(instances, spec, seed)
    layout = lay_out(base, spec, budget_of if left else unbounded, reporter, header)
    ours = fingerprint(base.device) | optimizer_fingerprint(spec.optimizer) | to_fingerprint(layout.memory_plan, spec)
    if header is not None and KERNELS in header.fingerprint:
        ours[KERNELS] = header.fingerprint[KERNELS]  # how it was, and will be, when it is alone
    cached_inputs = held_out = None
    if left:
        common: dict[str, Any] = {"directory": start.directory, "reporter": reporter}
        sample_sets, extra = class_images.sample_sets_of(
            base, spec, instances, classes, base_sha256=base_sha256, tick=tick, **common
        )
        ours |= extra | together_on(base, spec)
        cache = EncodingCache(worth_pixels=worth_pixels, **common)
        cached_inputs = cache_inputs(
            base, spec, sample_sets, seed=seed, first_step=first_step, tick=tick, encoding_cache=cache
        )
        if held is not None:
            held_out = HeldOut.encoded(base, spec, held, objective(), seed=seed, tick=tick)
    return Prepared(
        instances=instances,
        data_hash=data_hash,
        header=header,
        first_step=first_step,
        layout=layout,
        cached_inputs=cached_inputs,
        fingerprint=ours,
        held_out=held_out,
    )


def seed_of(spec: TrainSpec) -> int:
    """Return the job's seed, which submission sets."""
    if spec.seed is None:
        raise ValueError("a job's seed is set at submission")
    return spec.seed


# ---- checks


def check(base: BaseModel, spec: TrainSpec, start: Start, instances: SampleSet, classes: SampleSet | None) -> None:
    """Check the job. Raises WorkloadFailed: BAD_SPEC or BAD_DATA with every fault of a kind."""
    refuse_if(_objective_faults(base, spec), Reason.BAD_SPEC)
    refuse_if(plan_faults(base.unet, base.text_encoders, spec), Reason.BAD_SPEC)
    prompts = (("spec.class_prompt", spec.class_prompt), ("spec.instance_prompt", spec.instance_prompt))
    fields = [(where, prompt) for where, prompt in prompts if prompt is not None]
    fields += [(f"spec.sample_prompts.{number}", prompt) for number, prompt in enumerate(spec.sample_prompts)]
    refuse_if(unsaid(spec, [sample.caption for sample in instances.samples]), Reason.BAD_SPEC)
    refuse_if(_length_faults(base, spec, fields, instances, classes))
    if starts_from_file(spec, start):
        check_init_lora(base, spec, start.inputs)


def _length_faults(
    base: BaseModel,
    spec: TrainSpec,
    prompts: Sequence[tuple[str, str]],
    instances: SampleSet,
    classes: SampleSet | None,
) -> list[Fault]:
    """Return faults for captions and prompts with more tokens than fit. A shuffled caption has to fit in any
    order."""
    if spec.truncate_captions:
        return []
    heard = [(where, spoken(spec, prompt)) for where, prompt in prompts]
    count = partial(token_count, tokenizers=base.tokenizers)
    heard += [(sample.name, longest_spoken(spec, sample.caption, count)) for sample in instances.samples]
    heard += [(sample.name, spoken(spec, sample.caption)) for sample in (classes.samples if classes else ())]
    return too_long(heard, base.tokenizers, max_token_length=spec.max_token_length)


def header_of(start: Start, spec: TrainSpec, *, data_hash: str, base_sha256: str) -> Header | None:
    """Return the header of the checkpoint that the attempt resumes from, checked before hours are spent on
    caching."""
    resume = start.resume
    if resume is None:
        return None
    header = read_header(resume.path)
    # No one is blamed yet: it may be this node's copy, or the hub's branch. A second machine should have a look.
    refuse(resume.path, base_faults(header, base_sha256), Reason.CRASHED)
    refuse(resume.path, header_faults(header, step=resume.step, spec=spec, data_hash=data_hash))
    return header


def prediction_type_of(base: BaseModel, spec: TrainSpec) -> str:
    """Return the prediction type with which the UNet is trained."""
    return spec.prediction_type or base.prediction_type


def _objective_faults(base: BaseModel, spec: TrainSpec) -> list[Fault]:
    """Return the faults that only the base model can tell."""
    faults = []
    if spec.rescale_betas_zero_snr and prediction_type_of(base, spec) == "epsilon":
        message = "the base model predicts epsilon, and of pure noise there is nothing to tell"
        hint = "set prediction_type v_prediction, or leave it out"
        faults.append(Fault(where="spec.rescale_betas_zero_snr", message=message, hint=hint))
    if spec.prior_prediction and prediction_type_of(base, spec) != base.prediction_type:
        message = f"the base model predicts {base.prediction_type}, which is what it could be held to"
        hint = "leave prediction_type out, or choose class pictures instead of prior_prediction"
        faults.append(Fault(where="spec.prior_prediction", message=message, hint=hint))
    count = base.noise_scheduler.config.num_train_timesteps
    if spec.min_timestep >= count:
        message = f"the base model has only {count} timesteps"
        faults.append(Fault(where="spec.min_timestep", message=message, hint=f"choose one below {count}"))
    return faults
