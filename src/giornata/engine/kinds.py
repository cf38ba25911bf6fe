"""The class for each kind of job. torch is loaded only when a workload is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.specs import CANARY_KIND, PRETRAIN_KIND, VALIDATE_KIND
from giornata.workloads.interface import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlace:
    """The directory of compiled kernels on this node, and the key to share them with others (None: not shared)."""

    directory: Path | None = None
    secret: bytes | None = field(default=None, repr=False)


NOWHERE = KernelPlace()


def _train(device: str, places: int, model_cache_bytes: int | None, kernels: KernelPlace) -> Workload:
    from giornata.workloads.train.compiling import Compiler
    from giornata.workloads.train.kernel_cache import KernelCache
    from giornata.workloads.train.workload import TrainWorkload

    compiler = Compiler(cache=KernelCache(directory=kernels.directory, secret=kernels.secret))
    return TrainWorkload(device=device, places=places, model_cache_bytes=model_cache_bytes, compiler=compiler)


def _validate(device: str, _places: int, model_cache_bytes: int | None, kernels: KernelPlace) -> Workload:
    return _train(device, 1, model_cache_bytes, kernels)


def _canary(device: str, _places: int, _model_cache_bytes: int | None, _kernels: KernelPlace) -> Workload:
    from giornata.workloads.canary.workload import CanaryWorkload

    return CanaryWorkload(device=device)


def _pretrain(_device: str, _places: int, _model_cache_bytes: int | None, _kernels: KernelPlace) -> Workload:
    from giornata.workloads.pretrain.workload import PretrainWorkload

    return PretrainWorkload()


def _generate(device: str, places: int, model_cache_bytes: int | None, _kernels: KernelPlace) -> Workload:
    from giornata.workloads.generate.workload import GenerateWorkload

    return GenerateWorkload(device=device, places=places, model_cache_bytes=model_cache_bytes)


FACTORIES: Mapping[str, Callable[[str, int, int | None, KernelPlace], Workload]] = MappingProxyType(
    {
        "train": _train,
        GENERATE_KIND: _generate,
        VALIDATE_KIND: _validate,
        PRETRAIN_KIND: _pretrain,
        CANARY_KIND: _canary,
    }
)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise InvalidInput for kinds that do not exist; before anything heavy is loaded."""
    unknown = [kind for kind in kinds if kind not in FACTORIES]
    if unknown:
        known = ", ".join(FACTORIES)
        raise InvalidInput(Fault(where="--kinds", message=f"no kind {kind!r}", hint=known) for kind in unknown)


def make_workloads(
    kinds: Sequence[str],
    device: str,
    *,
    places: int = 1,
    model_cache_bytes: int | None = None,
    kernels: KernelPlace = NOWHERE,
) -> dict[str, Workload]:
    """Make one workload for each kind, on the device; it may carry out `places` attempts at once, if it can.
    `model_cache_bytes` bounds the models kept on disk. What trains also validates, with one base in memory."""
    apart = [kind for kind in kinds if kind != VALIDATE_KIND or "train" not in kinds]
    made = {kind: FACTORIES[kind](device, places, model_cache_bytes, kernels) for kind in apart}
    return {kind: made.get(kind) or made["train"] for kind in kinds}
