"""The interface that inspects pictures which users send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from giornata.domain.errors import Fault


class Inspection(Protocol):
    """The findings on one picture; sides in pixels, None when it could not be read that far."""

    @property
    def name(self) -> str: ...

    @property
    def format(self) -> str | None: ...

    @property
    def width(self) -> int | None: ...

    @property
    def height(self) -> int | None: ...

    @property
    def faults(self) -> Sequence[Fault]: ...

    @property
    def notes(self) -> Sequence[str]: ...


class Pictures(Protocol):
    """Reads untrusted bytes where they can do no harm."""

    def preview(self, path: Path) -> bytes | None:
        """Return a small JPEG of a picture that browsers do not show; None where it cannot be read."""

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[Inspection]:
        """Return one inspection for each (name, path), in order. Whatever a picture does, the others get theirs."""
