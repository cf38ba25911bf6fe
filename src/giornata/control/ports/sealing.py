"""The interface that encrypts a project's secrets while they lie in the store."""

from typing import Protocol

from giornata.domain.errors import Unavailable


class Sealer(Protocol):
    """Encrypts and authenticates texts. The database alone is not enough to read or forge what it sealed."""

    @property
    def seals(self) -> bool:
        """True when there is a key to seal with."""

    def seal(self, text: str) -> str:
        """Return the encrypted text: printable, and different each time."""

    def unseal(self, sealed: str) -> str:
        """Return the text. Raises Unavailable when this is not the key that it was sealed with."""


class NoSealer:
    """A sealer without a key: secrets of projects are refused, and the signing key is kept in the clear.

    The command line starts no server without a key. Tests and the simulator, whose databases end with them, do.
    """

    seals = False

    def seal(self, text: str) -> str:
        """Raises Unavailable because no key is set."""
        del text
        raise Unavailable("this installation keeps no secrets: its setting secrets_key is not set")

    def unseal(self, sealed: str) -> str:
        """Raises Unavailable because no key is set."""
        return self.seal(sealed)
