"""The kinds `train`, DreamBooth LoRA whose result does not show where it was interrupted, `validate` and `audit`."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import SecretStr, ValidationError

from giornata.diffusion.adapter.tokens import taught
from giornata.diffusion.base.eight_bits import held_base
from giornata.diffusion.base.hub import HubCache, HuggingFaceHub, arriving
from giornata.diffusion.base.models import BaseModel, load_base
from giornata.diffusion.base.safetensors_link import with_suffix
from giornata.diffusion.base.shared_weights import SharedWeights
from giornata.diffusion.base.weights_digest import base_sha256
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.model import Message
from giornata.protocol.node.joint import joint_key
from giornata.protocol.node.pipe import Start
from giornata.protocol.specs import (
    AUDIT_KIND,
    OF_TRAINING,
    VALIDATE_KIND,
    AuditSpec,
    TrainSpec,
    ValidateSpec,
    model_key,
)
from giornata.protocol.training.base_model import BaseQuantization
from giornata.protocol.training.model_names import is_single_file, may_be_registered
from giornata.workloads.interface import BatchSession, Clock, Outcome, Reporter, Stopped
from giornata.workloads.train.attempt import TrainingAttempt
from giornata.workloads.train.batching import BatchTrainer
from giornata.workloads.train.device.compiling import NO_CACHE, Compiler
from giornata.workloads.train.device.graph_conditions import CAPTURING, Capturing
from giornata.workloads.train.device.layout import places_within, sizes_in_a_place
from giornata.workloads.train.device.memory_budget import BudgetOf, budget_of
from giornata.workloads.train.faults import blamed
from giornata.workloads.train.inputs.encoding_cache import WORTH_PIXELS
from giornata.workloads.train.replaying import (
    ReplayAttempt,
    ReplayReporter,
    ReplaySession,
    ReplayTrainer,
    places_of,
    replay,
    start_of_stretch,
)
from giornata.workloads.train.results.step_metrics import peak_of
from giornata.workloads.train.results.validating import Validation

Spec = TypeVar("Spec", bound=Message)
Loader = Callable[..., BaseModel]
BASE_ROLE = "base"
HOLDER = "train"
"""The name of the warm base among the bases of the process."""


class TrainWorkload:
    """Runs one training attempt after the other on a base model that stays warm between them.

    `load` has the signature of giornata.diffusion.base.models.load_base; `clock` gives seconds that only ever grow;
    `budget_of` looks at the device's memory; for `pack_worth_pixels` see
    giornata.workloads.train.inputs.encoding_cache.
    `model_cache_bytes` bounds the models that are fetched from the hub and kept on disk. `compiler` compiles kernels
    for a job that trains alone, and `capturing` makes graphs. Up to `places` jobs that may share a batch train
    together, as far as the device has room for them; see workloads.interface.JointWorkload. The warm base shares
    memory with the bases of other workloads that have the same `shared_weights`.
    """

    def __init__(
        self,
        *,
        device: torch.device | str | None = None,
        clock: Clock = time.monotonic,
        load: Loader = load_base,
        budget_of: BudgetOf = budget_of,
        pack_worth_pixels: int = WORTH_PIXELS,
        model_cache_bytes: int | None = None,
        places: int = 1,
        compiler: Compiler = NO_CACHE,
        capturing: Capturing = CAPTURING,
        shared_weights: SharedWeights | None = None,
    ) -> None:
        self._shared_weights = shared_weights or SharedWeights()
        self._model_cache_bytes = model_cache_bytes
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._device, self._clock, self._load, self._budget_of = torch.device(chosen), clock, load, budget_of
        self._pack_worth_pixels = pack_worth_pixels
        self._base: BaseModel | None = None
        self._peaks: dict[torch.dtype, float | None] = {}
        self._base_sha256 = ""
        self._token: SecretStr | None = None
        self.places = places
        self._compiler, self._capturing = compiler, capturing

    def held(self) -> tuple[str, ...]:
        """Return the key of the warm base, if there is one."""
        return () if self._base is None else (self._base.key,)

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Train, from the start or from `start.resume`, and hand over the files. See workloads.interface.Workload."""
        if start.kind == VALIDATE_KIND:
            return self._validate(start, reporter)
        if start.kind == AUDIT_KIND:
            return self._audit(start, reporter)
        spec = parse(start)
        with self._kept(), blamed():
            base = self._taught(spec, start, reporter)
            return TrainingAttempt(
                start=start,
                spec=spec,
                base=base,
                base_sha256=self._base_sha256,
                reporter=reporter,
                clock=self._clock,
                budget_of=self._budget_of,
                peak_flops_per_s=self._peak(base.dtype),
                pack_worth_pixels=self._pack_worth_pixels,
                compiler=self._compiler,
                capturing=self._capturing,
            ).run()

    def _validate(self, start: Start, reporter: Reporter) -> Outcome:
        spec = parse_validation(start)
        with self._kept(), blamed():
            base = self._taught(spec.training, start, reporter)
            return Validation(
                start=start,
                spec=spec,
                base=base,
                base_sha256=self._base_sha256,
                reporter=reporter,
                clock=self._clock,
            ).run()

    def _audit(self, start: Start, reporter: Reporter) -> Outcome:
        spec, kept = parse_audit(start), ReplayReporter(reporter)
        with self._kept(), blamed():
            base = self._taught(spec.training, start, reporter)
            attempt = ReplayAttempt(
                start=start_of_stretch(start, spec),
                spec=spec.training,
                base=base,
                base_sha256=self._base_sha256,
                reporter=kept,
                clock=self._clock,
                budget_of=self._budget_of,
                pack_worth_pixels=self._pack_worth_pixels,
                compiler=self._compiler,
                capturing=self._capturing,
                to_step=spec.to_step,
                conditions=spec.conditions,
            )
            run = partial(self._repeat_together, attempt) if attempt.is_joint else attempt.run
            return replay(run, attempt, kept)

    def _repeat_together(self, attempt: ReplayAttempt) -> Outcome:
        """Repeat steps of a shared batch."""
        trainer = ReplayTrainer(attempt, places=places_of(attempt.conditions), **self._parts_of_batch(attempt.base))
        return ReplaySession(attempt).run(trainer)

    def _taught(self, spec: TrainSpec, start: Start, reporter: Reporter) -> BaseModel:
        """Return the warm base with the job's new tokens."""
        reporter.phase("loading")
        return taught(self._warm(spec, start, lambda: reporter.phase("loading")), spec)

    def joins(self, start: Start) -> str | None:
        """Return the attempt's key, see giornata.protocol.node.joint.

        None also for a wrong spec: its own attempt will say so.
        """
        if start.kind in OF_TRAINING:
            return None
        try:
            return joint_key(TrainSpec.model_validate(start.spec))
        except ValidationError:
            return None

    def run_many(self, session: BatchSession) -> None:
        """Train the session's jobs together until it has no more. See workloads.interface.JointWorkload.

        On a device with room for one only, that one trains as it would alone: refused, or made smaller to fit.
        """
        first = session.next()
        if first is None:
            return
        start, reporter = first
        with self._kept(), blamed():
            spec = parse(start)
            reporter.phase("loading")
            base = self._warm(spec, start, lambda: reporter.phase("loading"))
            budget = self._budget_of(base.device)
            places = places_within(sizes_in_a_place(base, spec), spec, budget, most=self.places)
            if budget is not None:
                reporter.log(f"up to {places} jobs may share the batch on this device")
            if places > 1:
                session.offer(places)
                self._joint(base, spec, places).run(_After(first, session))
                return
        session.ended(start, self._end_of(start, reporter))

    def _joint(self, base: BaseModel, spec: TrainSpec, places: int) -> BatchTrainer:
        return BatchTrainer(base, spec, places=places, **self._parts_of_batch(base))

    def _parts_of_batch(self, base: BaseModel) -> dict[str, Any]:
        return {
            "base_sha256": self._base_sha256,
            "parse": parse,
            "clock": self._clock,
            "peak_flops_per_s": self._peak(base.dtype),
            "pack_worth_pixels": self._pack_worth_pixels,
            "capturing": self._capturing,
            "budget_now": partial(self._budget_of, base.device),
        }

    def _end_of(self, start: Start, reporter: Reporter) -> Outcome | Exception:
        try:
            return self.run(start, reporter)
        except Exception as error:  # noqa: BLE001 - the supervisor of this job: the engine tells what it was
            return error

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep the base warm, unless the end suggests that it is broken. Its weights share memory again afterwards:
        fused projections had moved theirs."""
        try:
            yield
        except Stopped:
            raise
        except WorkloadFailed as failure:
            if failure.reason not in {Reason.BAD_SPEC, Reason.BAD_DATA, Reason.NODE_TOO_SMALL}:
                self._drop()
            raise
        except BaseException:
            self._drop()  # it left the model in an unknown state
            raise
        finally:
            if self._base is not None:
                self._shared_weights.join(HOLDER, self._base)

    def _warm(self, spec: TrainSpec, start: Start, arrives: Callable[[], None]) -> BaseModel:
        """Return the base that the spec names; the one before is let go first, two might not fit. `arrives` is called
        while it comes from the hub, however slowly.

        A model that was opened with one project's token is opened again for a job with another: the hub decides.
        """
        key, dtype, token = model_key("train", spec.model_dump()), dtype_of(spec), start.hub_token
        if self._base is None or (self._base.key, self._base.dtype, self._token) != (key, dtype, token):
            self._drop()
            cache = HubCache(bound_bytes=self._model_cache_bytes)
            with closing(HuggingFaceHub(token, cache)) as hub, arriving(cache.directory, arrives):
                device, came = self._loads_onto(spec), file_of_base(spec, start)
                base = self._load(spec, device=device, dtype=dtype, hub=hub, **came)
            self._base_sha256 = base_sha256(base)  # of the weights as they were loaded, whatever they are held in
            self._base = held_base(base, spec.base_quantization, self._device)
            self._shared_weights.join(HOLDER, self._base)
            self._token = token
        return self._base

    def _loads_onto(self, spec: TrainSpec) -> torch.device:
        """Return the device to load onto: weights that will be narrow are never wide on the GPU."""
        return self._device if spec.base_quantization is BaseQuantization.NONE else torch.device("cpu")

    def _peak(self, dtype: torch.dtype) -> float | None:
        """Return the device's rate, measured once in the life of the engine."""
        if dtype not in self._peaks:
            self._peaks[dtype] = peak_of(self._device, dtype)
        return self._peaks[dtype]

    def _drop(self) -> None:
        self._base = self._token = None
        self._shared_weights.leave(HOLDER)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class _After:
    """A session whose first attempt was taken before, and is given again."""

    def __init__(self, first: tuple[Start, Reporter], session: BatchSession) -> None:
        self._first: tuple[Start, Reporter] | None = first
        self._session = session

    def next(self) -> tuple[Start, Reporter] | None:
        first, self._first = self._first, None
        return first or self._session.next()

    def ended(self, start: Start, end: Outcome | Exception) -> None:
        self._session.ended(start, end)

    def offer(self, places: int) -> None:
        self._session.offer(places)


def file_of_base(spec: TrainSpec, start: Start) -> dict[str, Path]:
    """Return `path`, the file of the base that came with the lease; nothing for a base that is found by its name.

    Raises WorkloadFailed for a registered model of which the server has no file any more.
    """
    sha256, name = spec.pretrained_model_sha256, spec.pretrained_model_name_or_path
    found = next((each for each in start.inputs if each.role == BASE_ROLE and each.sha256 == sha256), None)
    if found is not None:
        return {"path": with_suffix(found.path, found.sha256, start.directory)}
    if sha256 is not None and may_be_registered(name) and not is_single_file(name) and not Path(name).exists():
        message = f"the server no longer has the file of {name}"
        fault = Fault(where="spec.pretrained_model_name_or_path", message=message, hint="add it again, and retry")
        raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,))
    return {}


def dtype_of(spec: TrainSpec) -> torch.dtype:
    """Return the precision of the frozen base. The adapter's weights are float32 in any case."""
    return torch.bfloat16 if spec.mixed_precision == "bf16" else torch.float32


def parse(start: Start) -> TrainSpec:
    """Parse the spec and check it again: a node may be older or newer than the server. Raises
    WorkloadFailed(BAD_SPEC)."""
    return _whole(_parsed(TrainSpec, start), start)


def parse_validation(start: Start) -> ValidateSpec:
    """Parse and check the spec of a validation, as `parse` does that of a training job."""
    spec = _parsed(ValidateSpec, start)
    _whole(spec.training, start)
    return spec


def parse_audit(start: Start) -> AuditSpec:
    """Parse and check the spec of an audit, as `parse` does that of a training job."""
    spec = _parsed(AuditSpec, start)
    _whole(spec.training, start)
    return spec


def _parsed(kind: type[Spec], start: Start) -> Spec:
    try:
        return kind.model_validate(start.spec)
    except ValidationError as error:
        faults = tuple(
            Fault(where=".".join(["spec", *map(str, fault["loc"])]), message=fault["msg"]) for fault in error.errors()
        )
        raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, faults)), faults) from error


def _whole(spec: TrainSpec, start: Start) -> TrainSpec:
    """Return the spec of a training job, if it has all that submission sets. Raises WorkloadFailed(BAD_SPEC)."""
    unset = []
    if spec.seed is None:
        unset.append(Fault(where="spec.seed", message="is not set", hint="submission draws and records one"))
    if spec.num_train_epochs is not None:
        unset.append(Fault(where="spec.num_train_epochs", message="is turned into max_train_steps at submission"))
    if spec.hub_token_secret is not None and start.hub_token is None:
        message = f"the server could not hand out {spec.hub_token_secret}: it was deleted, or cannot be decrypted"
        hint = "set the secret again, and retry the job"
        unset.append(Fault(where="spec.hub_token_secret", message=message, hint=hint))
    if unset:
        raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, unset)), tuple(unset))
    return spec
