"""The options of `giornata train --standalone`, apart from the run, which imports the agent and the storage."""

from dataclasses import dataclass
from pathlib import Path

from giornata.cli.options import misplaced
from giornata.domain.errors import Fault
from giornata.pictures.subsets import Subset


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneOptions:
    """The options of a standalone run, as the command got them."""

    directory: Path | None
    checkpoint_to: str | None
    output: Path | None
    webhook: str | None
    class_directory: Path | None = None
    model_cache_bytes: int | None = None
    subsets: tuple[Subset, ...] = ()
    class_subsets: tuple[Subset, ...] = ()

    @property
    def folder(self) -> Path | None:
        """The folder with the pictures; the first, where there are several."""
        return self.subsets[0].path if self.subsets else self.directory

    def misplaced(self) -> list[Fault]:
        """Return a fault for each option that means nothing without --standalone."""
        options = {
            "--checkpoint-to": self.checkpoint_to,
            "--webhook": self.webhook,
            "--model-cache-bytes": self.model_cache_bytes,
        }
        hint = "add --standalone, or leave it out"
        return misplaced(options, "means nothing for a job on a server", hint=hint)
