"""Base models in host memory. A base that was drawn with before comes back from there, and no file is read."""

from collections import OrderedDict
from dataclasses import dataclass

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.swap import size_bytes_of

HostKey = tuple[str, str]
"""The part that the model is loaded as, and its key: a refiner is read otherwise than a base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInHostMemory:
    """A base on the CPU as its files have it, the sha256 of these, and its size."""

    base: BaseModel
    sha256s: frozenset[str]
    size_bytes: int


class HostModels:
    """The bases that were used last, `max_bytes` together at most; 0 keeps none.

    Nothing may write into a base that is kept. A workload copies it before it draws with it (`swap_base`,
    `copied_base`).
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._bases: OrderedDict[HostKey, BaseInHostMemory] = OrderedDict()

    def get(self, key: HostKey) -> BaseModel | None:
        """Return a base that is kept; None for any other. The others are older from now on."""
        if key not in self._bases:
            return None
        self._bases.move_to_end(key)
        return self._bases[key].base

    def keep(self, key: HostKey, base: BaseModel, sha256s: frozenset[str]) -> bool:
        """Keep a base on the CPU, in the place of those that were used longest ago. False when it is too large."""
        size_bytes = size_bytes_of(base)
        if size_bytes > self._max_bytes:
            return False
        while size_bytes + sum(each.size_bytes for each in self._bases.values()) > self._max_bytes:
            self._bases.popitem(last=False)
        self._bases[key] = BaseInHostMemory(base=base, sha256s=sha256s, size_bytes=size_bytes)
        return True

    def files(self) -> tuple[str, ...]:
        """Return the sha256 of each file whose base is kept. Models of the hub have none."""
        return tuple(sorted(frozenset[str]().union(*(each.sha256s for each in self._bases.values()))))

    def drop(self) -> None:
        """Release the memory of all bases."""
        self._bases.clear()
