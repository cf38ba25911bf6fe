"""Decides if a job's steps run as compiled kernels: once, before its first step, and kept from then on.

Compiled kernels round differently. So the choice is part of what bits depend on: the fingerprint of every checkpoint
says with which compiler they were made (entry `compile`; none for plain kernels), and later attempts keep to it,
whatever a clock or an empty cache would tell them.

auto decides by arithmetic over the job's size and a table of what was measured; it measures nothing itself. Two jobs
with equal specs therefore decide alike on equal nodes, unless kernels are at hand for one of them only: a user who
wants equal bits there too says on or off.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.regional import compiled, compiler_of, kinds_of_region, plainly, regions
from giornata.diffusion.files.checkpoint import Header
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.objective import has_dropout
from giornata.protocol.training.optimization import Compile
from giornata.workloads.interface import Reporter
from giornata.workloads.train.device.graphs import Pass, copies_of, put_back, same_bytes
from giornata.workloads.train.device.kernel_cache import KernelCache, kernel_key
from giornata.workloads.train.device.memory_budget import MemoryPlan

KERNELS = "compile"
"""The fingerprint's entry: the compiler's name and version."""
COMPILER_FAILED = "compiler-failed"
"""The notice that goes into the job's events when auto goes on without kernels."""
SIZES_IN_BUCKETS = 6
"""The assumed number of picture sizes in a job with enable_bucket. A guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """The seconds measured on a kind of device: `saved_s` per region and pass (forward and backward), `made_s` per
    kind of region and size of picture, `found_s` likewise where the kernels are on disk already."""

    saved_s: float
    made_s: float
    found_s: float


SPEEDS: Mapping[str, Speeds] = MappingProxyType({"cpu": Speeds(saved_s=2.5e-4, made_s=14.0, found_s=1.9)})
"""By torch's names of devices; docs/benchmark-log.md says how they were measured, and that larger blocks save more.
CUDA has no row, and auto is off there, until this code has been measured on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSteps:
    """A job as the compiler sees it: `passes` through the UNet in all its steps, `regions` in each, and the `kernels`
    to be made. There is one kernel for each kind of region and size of picture, and one more for the first region, to
    whose input no gradient goes back."""

    passes: int
    regions: int
    kernels: int

    @classmethod
    def of(cls, base: BaseModel, spec: TrainSpec, memory_plan: MemoryPlan) -> "CompiledSteps":
        """Return all steps of a job: it decides at its start."""
        pictures = spec.train_batch_size * spec.gradient_accumulation_steps
        sample_sets = 2 if spec.with_prior_preservation and not spec.prior_prediction else 1
        per_step = sample_sets * -(-pictures // memory_plan.rows)
        sizes = SIZES_IN_BUCKETS if spec.enable_bucket else 1
        return cls(
            passes=spec.max_train_steps * per_step,
            regions=len(regions(base.unet)),
            kernels=(kinds_of_region(base.unet) + 1) * sizes,
        )

    def saved_s(self, speeds: Speeds) -> float:
        """Return the seconds that compiled kernels save over all passes."""
        return self.passes * self.regions * speeds.saved_s

    def ready_s(self, speeds: Speeds, *, at_hand: bool) -> float:
        """Return the seconds until all kernels can run."""
        return self.kernels * (speeds.found_s if at_hand else speeds.made_s)

    def pays(self, speeds: Speeds, *, at_hand: bool) -> bool:
        """Return True when kernels save more seconds than they cost."""
        return self.saved_s(speeds) > self.ready_s(speeds, at_hand=at_hand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The compiler of a node: `version_of` a device's compiler (None: it has none), the cache of kernels, and the
    table of speeds that auto goes by."""

    version_of: Callable[[torch.device], str | None] = compiler_of
    cache: KernelCache = field(default_factory=KernelCache)
    speeds: Mapping[str, Speeds] = field(default_factory=lambda: SPEEDS)


NO_CACHE = Compiler()
"""Kernels are kept wherever torch does so by itself, and shared with no other node."""


class Kernels:
    """The kernels of one attempt, or none. `entry` goes into its fingerprint; `layer` is what `lora_layer` says.

    Raises WorkloadFailed(CRASHED), which sends the job to another node, when `compile` is on and there is no
    compiler.
    """

    def __init__(
        self,
        compiler: Compiler,
        base: BaseModel,
        spec: TrainSpec,
        memory_plan: MemoryPlan,
        *,
        layer: str,
        header: Header | None,
        reporter: Reporter,
        directory: Path,
    ) -> None:
        self._compiler, self._base, self._spec, self._footprint = compiler, base, spec, memory_plan
        self._layer = layer
        self._reporter, self._directory = reporter, directory
        self._had = header is not None and KERNELS in header.fingerprint
        self._looked = self._fetched = self._settled = False
        self._version = self._begun() if header is None else self._resumed(header)

    @property
    def entry(self) -> dict[str, str | None]:
        """Return the fingerprint's entry: empty for plain kernels, and None where those took over from compiled
        ones."""
        return {KERNELS: self._version} if self._version is not None or self._had else {}

    def carry_out(self, steps: Callable[[], None], *, undo: Callable[[], None]) -> None:
        """Make the steps, with kernels or without, as was decided.

        auto must not cost a job that could do without: when the compiler fails in the job's very first step, or when
        kernels differ from plain ones in the attempt's first pass, no weight has changed. `undo` is called then, and
        the steps are made again without kernels.
        """
        if self._version is None:
            steps()
            return
        if not self._at_hand(self._version):
            self._reporter.log(f"the UNet's regions are compiled in the first step, by {self._version}")
        said = self._compiled(steps)
        if said is None:
            return
        # Outside of the except clause: with the exception went its traceback, whose frames held the activations.
        self._version = None
        self._reporter.notice(COMPILER_FAILED, {"message": said[:500]})
        undo()
        steps()

    def checked(
        self, make: Callable[[Pass], torch.Tensor], gradients: Callable[[], Sequence[torch.Tensor]]
    ) -> Callable[[Pass], torch.Tensor]:
        """Return `make`, whose first pass is made by plain kernels too; itself without kernels, and where the user
        wants them."""
        if self._version is None or self._spec.compile is Compile.ON:
            return make
        plain = partial(plainly, self._base.unet)
        return KernelTrial(make, gradients, plain, mixed_precision=self._spec.mixed_precision)

    def _compiled(self, steps: Callable[[], None]) -> str | None:
        """Make the steps with kernels; return None, or what the compiler said of a failure that can be undone."""
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import CppCompileError

        try:
            with compiled(self._base.unet):
                steps()
        except KernelsDiffer as error:  # only in the attempt's first pass, and only of auto
            return str(error)
        except (TorchDynamoException, CppCompileError) as error:
            if self._settled or self._had or self._spec.compile is Compile.ON:
                raise
            return str(error)
        return None

    def settle(self) -> None:
        """Keep for others the kernels that a finished step has compiled. Does something only the first time."""
        if self._version is None or self._settled:
            return
        self._settled = True
        cache, key = self._compiler.cache, self._key(self._version)
        cache.note(key)
        if not self._fetched:
            cache.offer(key, self._reporter, self._directory)

    # ---- the decision

    def _begun(self) -> str | None:
        wanted, device = self._spec.compile, self._base.device
        speeds = self._compiler.speeds.get(device.type)
        if wanted is Compile.OFF or has_dropout(self._spec):
            return None
        if wanted is Compile.ON:
            return self._compiler.version_of(device) or self._refuse()
        work = CompiledSteps.of(self._base, self._spec, self._footprint)
        if speeds is None or not work.pays(speeds, at_hand=True):
            return None  # nothing to weigh, so nothing to say
        version = self._compiler.version_of(device)
        if version is None:
            self._say("off: this node has no compiler")
            return None
        at_hand = self._at_hand(version)
        pays = work.pays(speeds, at_hand=at_hand)
        self._say(f"{'on' if pays else 'off'}: {_in_words(work, speeds, at_hand=at_hand)}")
        return version if pays else None

    def _resumed(self, header: Header) -> str | None:
        """Return the compiler's version that the run resumes with, as the checkpoint says. When auto finds no
        compiler any more, plain kernels go on, as on other hardware: recorded, and never silent."""
        before: str | None = header.fingerprint.get(KERNELS)
        if before is None or header.step >= self._spec.max_train_steps:
            return before
        version = self._compiler.version_of(self._base.device)
        if version is None and self._spec.compile is Compile.ON:
            self._refuse()
        return version

    def _refuse(self) -> NoReturn:
        message = f"this node has nothing that compiles kernels for {self._base.device.type}"
        hint = "install g++ on the node (for CUDA also triton), or leave compile to auto"
        fault = Fault(where="spec.compile", message=message, hint=hint)
        raise WorkloadFailed(Reason.CRASHED, str(fault), (fault,))

    def _at_hand(self, version: str) -> bool:
        """Return True when kernels are on this node's disk; those of others are fetched, once."""
        key = self._key(version)
        if self._compiler.cache.holds(key):
            return True
        if not self._looked:
            self._looked, self._fetched = True, self._compiler.cache.fetch(key, self._reporter)
        return self._fetched

    def _key(self, version: str) -> str:
        return kernel_key(self._base, self._spec, self._footprint, layer=self._layer, compiler=version)

    def _say(self, what: str) -> None:
        self._reporter.log(f"compile auto: {what}")


def _in_words(work: CompiledSteps, speeds: Speeds, *, at_hand: bool) -> str:
    spent = f"{work.ready_s(speeds, at_hand=at_hand):.0f} s to {'load' if at_hand else 'make'}"
    return f"compiled kernels are expected to save {work.saved_s(speeds):.0f} s, and to take {spent}"


# ---- the trial: compiled kernels against plain ones, in the first pass of an attempt
#
# Compiled kernels round differently than plain ones, so those bytes cannot be compared. What is compared to the byte
# is the pass with itself: made twice from one state, it must give equal bytes, or no resume could be exact. Against
# plain kernels the loss is compared, and the length of the difference of all gradients with the length of the plain
# ones. When all agree, the pass by kernels counts, and the job has the bits of a job with kernels. Otherwise the
# attempt begins anew without kernels, and the job has the bits of a job without. So the check changes no result.

LOSS_TOLERANCE: Mapping[str, float] = MappingProxyType({"no": 1e-4, "bf16": 1e-2})
GRADIENT_TOLERANCE: Mapping[str, float] = MappingProxyType({"no": 1e-2, "bf16": 1e-1})
"""By the spec's mixed_precision, relative; docs/reference/training-speed.md promises them."""


class KernelsDiffer(Exception):
    """An error: compiled kernels gave another result than plain ones, or than themselves."""


class KernelTrial:
    """A maker of passes by `make`; the first one also with plain kernels, which `plain` switches on.

    The first pass raises KernelsDiffer when the two differ by more than the tolerances, and when a second pass by
    compiled kernels has other bytes than the first.
    """

    def __init__(
        self,
        make: Callable[[Pass], torch.Tensor],
        gradients: Callable[[], Sequence[torch.Tensor]],
        plain: Callable[[], AbstractContextManager[None]],
        *,
        mixed_precision: str,
    ) -> None:
        self._make, self._gradients, self._plain = make, gradients, plain
        self._loss, self._gradient = LOSS_TOLERANCE[mixed_precision], GRADIENT_TOLERANCE[mixed_precision]
        self._done = False

    def __call__(self, one: Pass) -> torch.Tensor:
        """Return the loss of the pass."""
        if self._done:
            return self._make(one)
        gradients = self._gradients()
        before = copies_of(gradients)
        loss = self._make(one)
        after = copies_of(gradients)
        put_back(gradients, before)
        again = self._make(one)
        _require_equal([loss, *after], [again, *gradients])
        put_back(gradients, before)
        with self._plain():
            plain_loss = one.plainly()
        self._compare(before, after, gradients, loss, plain_loss)
        put_back(gradients, after)
        self._done = True
        return loss

    def _compare(
        self,
        before: Sequence[torch.Tensor],
        after: Sequence[torch.Tensor],
        plain: Sequence[torch.Tensor],
        loss: torch.Tensor,
        plain_loss: torch.Tensor,
    ) -> None:
        ours = _flat(after) - _flat(before)
        theirs = _flat(plain) - _flat(before)
        apart = {
            "the loss": (float((loss - plain_loss).abs()), float(plain_loss.abs()), self._loss),
            "gradients": (float((ours - theirs).norm()), float(theirs.norm()), self._gradient),
        }
        for what, (distance, size, tolerance) in apart.items():
            if not distance <= tolerance * size:  # a NaN is no agreement
                message = f"{what} of the first pass by compiled kernels differ by {distance:.3g} from those of plain"
                raise KernelsDiffer(f"{message} ones, which are {size:.3g}; at most {tolerance:g} of that is allowed")


def _require_equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
    if not same_bytes(first, second):
        raise KernelsDiffer("the first pass by compiled kernels has other bytes when it is made a second time")


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])
