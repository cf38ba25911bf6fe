"""What a planted bug is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`old` stands exactly once in the file below src/giornata."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug."""

    name: str
    patches: tuple[Mutation, ...]
    way: str = "sqlite"
    """Of the soak; `threads` for a bug that nobody meets who is alone."""
