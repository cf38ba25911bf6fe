"""What a project's secrets are encrypted with while they lie in the store."""

from typing import Protocol

from giornata.domain.errors import Unavailable


class Sealer(Protocol):
    """Encrypts and authenticates. Whoever has the database alone can neither read nor forge what it sealed."""

    @property
    def seals(self) -> bool:
        """Whether there is a key."""

    def seal(self, text: str) -> str:
        """The text, encrypted: printable, and different each time."""

    def unseal(self, sealed: str) -> str:
        """The text. Raises Unavailable when this is not the key that it was sealed with."""


class NoSealer:
    """No key: secrets of projects are refused, and the signing key is kept in the clear.

    The command line starts no server without a key. Tests and the simulator, whose databases end with them, do.
    """

    seals = False

    def seal(self, text: str) -> str:
        """Raises Unavailable."""
        del text
        raise Unavailable("this installation keeps no secrets: its setting secrets_key is not set")

    def unseal(self, sealed: str) -> str:
        """Raises Unavailable."""
        return self.seal(sealed)
