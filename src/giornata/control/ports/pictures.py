"""The interface that inspects pictures which users send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from giornata.domain.errors import Fault


class Inspection(Protocol):
    """The findings on one picture; sides in pixels, None when it could not be read that far."""

    @property
    def name(self) -> str:
        """The name that the caller gave with the file."""

    @property
    def format(self) -> str | None:
        """The name of the image format, or None when no known one was found."""

    @property
    def width(self) -> int | None:
        """The width in pixels, or None when it could not be read."""

    @property
    def height(self) -> int | None:
        """The height in pixels, or None when it could not be read."""

    @property
    def faults(self) -> Sequence[Fault]:
        """The reasons why the picture cannot be used; empty when it can."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user about a picture that can be used."""


class Pictures(Protocol):
    """Reads untrusted bytes where they can do no harm."""

    def preview(self, path: Path) -> bytes | None:
        """Return a small JPEG of a picture that browsers do not show; None where it cannot be read."""

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[Inspection]:
        """Return one inspection for each (name, path), in order. Whatever a picture does, the others get theirs."""
