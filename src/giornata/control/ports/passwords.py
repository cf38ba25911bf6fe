"""The interface that hashes the passwords of local accounts."""

from typing import Protocol

from giornata.domain.errors import Unavailable


class Passwords(Protocol):
    """Hashes passwords slowly. One call takes a good part of a second and tens of megabytes."""

    def hash(self, password: str) -> str:
        """Return the hash with its salt and its parameters; another one each time."""

    def verify(self, password_hash: str | None, password: str) -> bool:
        """Return whether the password is the one of the hash. None stands for an account that does not exist: the
        answer is False, and takes as long.
        """


class NoPasswords:
    """Refuses every password: an installation without people, such as that of the simulator."""

    def hash(self, password: str) -> str:
        """Raises Unavailable because this installation has no accounts."""
        del password
        raise Unavailable("this installation has no accounts")

    def verify(self, password_hash: str | None, password: str) -> bool:
        """Raises Unavailable because this installation has no accounts."""
        del password_hash
        return bool(self.hash(password))
