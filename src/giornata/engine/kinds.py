"""The class for each kind of job. torch is loaded only when a workload is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.preprocess import PREPROCESS_KIND
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.specs import AUDIT_KIND, CANARY_KIND, OF_TRAINING, PRETRAIN_KIND, VALIDATE_KIND
from giornata.protocol.training.optimization import Compile
from giornata.workloads.interface import Workload

if TYPE_CHECKING:
    from giornata.diffusion.base.shared_weights import SharedWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlace:
    """The directory of compiled kernels on this node, and the key to share them with others (None: not shared)."""

    directory: Path | None = None
    secret: bytes | None = field(default=None, repr=False)


NOWHERE = KernelPlace()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """The resources that the workloads of one engine have in common."""

    device: str
    places: int = 1
    model_cache_bytes: int | None = None
    host_model_bytes: int = 0
    compile: Compile = Compile.AUTO
    kernels: KernelPlace = NOWHERE
    shared_weights: "SharedWeights | None" = None


def _train(resources: EngineResources) -> Workload:
    from giornata.workloads.train.device.compiling import Compiler
    from giornata.workloads.train.device.kernel_cache import KernelCache
    from giornata.workloads.train.workload import TrainWorkload

    kernels = resources.kernels
    return TrainWorkload(
        device=resources.device,
        places=resources.places,
        model_cache_bytes=resources.model_cache_bytes,
        compiler=Compiler(cache=KernelCache(directory=kernels.directory, secret=kernels.secret)),
        shared_weights=resources.shared_weights,
    )


def _alone(resources: EngineResources) -> Workload:
    return _train(replace(resources, places=1))


def _canary(resources: EngineResources) -> Workload:
    from giornata.workloads.canary.workload import CanaryWorkload

    return CanaryWorkload(device=resources.device)


def _pretrain(_resources: EngineResources) -> Workload:
    from giornata.workloads.pretrain.workload import PretrainWorkload

    return PretrainWorkload()


def _generate(resources: EngineResources) -> Workload:
    from giornata.workloads.generate.compiling import DrawingCompiler
    from giornata.workloads.generate.workload import GenerateWorkload

    return GenerateWorkload(
        device=resources.device,
        places=resources.places,
        model_cache_bytes=resources.model_cache_bytes,
        host_model_bytes=resources.host_model_bytes,
        shared_weights=resources.shared_weights,
        compiler=DrawingCompiler(choice=resources.compile),
    )


def _preprocess(resources: EngineResources) -> Workload:
    from giornata.workloads.generate.preprocess_workload import PreprocessWorkload

    return PreprocessWorkload(device=resources.device, model_cache_bytes=resources.model_cache_bytes)


FACTORIES: Mapping[str, Callable[[EngineResources], Workload]] = MappingProxyType(
    {
        "train": _train,
        GENERATE_KIND: _generate,
        PREPROCESS_KIND: _preprocess,
        VALIDATE_KIND: _alone,
        AUDIT_KIND: _alone,
        PRETRAIN_KIND: _pretrain,
        CANARY_KIND: _canary,
    }
)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise InvalidInput for kinds that do not exist; before anything heavy is loaded."""
    unknown = [kind for kind in kinds if kind not in FACTORIES]
    if unknown:
        known = ", ".join(FACTORIES)
        raise InvalidInput(
            Fault(where="--kinds", message=f"there is no kind {kind!r}", hint=known) for kind in unknown
        )


def make_workloads(
    kinds: Sequence[str],
    device: str,
    *,
    places: int = 1,
    model_cache_bytes: int | None = None,
    host_model_bytes: int = 0,
    compile: Compile = Compile.AUTO,
    kernels: KernelPlace = NOWHERE,
) -> dict[str, Workload]:
    """Make one workload for each kind, on the device; it may carry out `places` attempts at once, if it can.

    `model_cache_bytes` bounds the models kept on disk, and `host_model_bytes` those in host memory. What trains also
    validates and audits, with one base, and what draws pictures shares the weights of that base. `compile` is the
    choice of kernels for pictures."""
    resources = EngineResources(
        device=device,
        places=places,
        model_cache_bytes=model_cache_bytes,
        host_model_bytes=host_model_bytes,
        compile=compile,
        kernels=kernels,
        shared_weights=_shared_weights() if GENERATE_KIND in kinds else None,
    )
    apart = [kind for kind in kinds if kind not in OF_TRAINING or "train" not in kinds]
    made = {kind: FACTORIES[kind](resources) for kind in apart}
    return {kind: made.get(kind) or made["train"] for kind in kinds}


def _shared_weights() -> "SharedWeights":
    from giornata.diffusion.base.shared_weights import SharedWeights

    return SharedWeights()
