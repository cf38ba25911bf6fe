"""Reads a small model of the hub by its name: one that annotates, or one that checks pictures."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from giornata.diffusion.base.hub import HubCache, arriving
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.train.faults import reason_of

Told = Callable[[], None]
"""Called while a model arrives from the hub, however slowly."""


@contextmanager
def reading_from_hub(*names: str, bound_bytes: int | None, told: Told) -> Iterator[None]:
    """Within, these models may be read from the hub's cache, and fetched into it. A name may be that of a folder.

    Raises WorkloadFailed when one cannot be read: another node may have more luck.
    """
    cache = HubCache(bound_bytes=bound_bytes)
    with closing(cache), arriving(cache.directory, told):
        for name in names:
            if not Path(name).exists():
                cache.using(name)
        try:
            yield
        except (OSError, ValueError, SafetensorError) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            said = f"{' and '.join(names)} cannot be loaded on this node: {first_line}"
            raise WorkloadFailed(reason_of(error) or Reason.NODE_DOWNLOAD, said) from error
        cache.trim()
