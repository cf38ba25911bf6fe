"""Which class does which kind of work. Loads torch only when a kind is made."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from giornata.domain.errors import Fault, InvalidInput
from giornata.engine.workload import Workload


def _train(device: str, places: int, model_cache_bytes: int | None) -> Workload:
    from giornata.workloads.train.workload import TrainWorkload

    return TrainWorkload(device=device, places=places, model_cache_bytes=model_cache_bytes)


FACTORIES: Mapping[str, Callable[[str, int, int | None], Workload]] = MappingProxyType({"train": _train})


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise InvalidInput for kinds that do not exist; before anything heavy is loaded."""
    unknown = [kind for kind in kinds if kind not in FACTORIES]
    if unknown:
        known = ", ".join(FACTORIES)
        raise InvalidInput(Fault(where="--kinds", message=f"no kind {kind!r}", hint=known) for kind in unknown)


def make_workloads(
    kinds: Sequence[str], device: str, *, places: int = 1, model_cache_bytes: int | None = None
) -> dict[str, Workload]:
    """One workload for each kind, on the device; it may carry out `places` attempts at once, if it can.
    `model_cache_bytes` bounds the models kept on disk."""
    return {kind: FACTORIES[kind](device, places, model_cache_bytes) for kind in kinds}
