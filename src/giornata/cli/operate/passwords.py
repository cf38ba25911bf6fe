"""Passwords of local accounts, hashed with argon2id."""

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError


class Argon2Passwords:
    """Hashes with argon2id (RFC 9106). The parameters travel in each hash, so that they can grow."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        # 46 MiB, one pass and one lane: the first of OWASP's equal choices. A server has two such threads.
        self._hasher = hasher or PasswordHasher(time_cost=1, memory_cost=47_104, parallelism=1)
        self._nobody: str | None = None

    def hash(self, password: str) -> str:
        """Return the hash in PHC's format."""
        return self._hasher.hash(password)

    def verify(self, password_hash: str | None, password: str) -> bool:
        """Return whether the password is the one of the hash; for None False, after as much work."""
        if self._nobody is None:
            self._nobody = self._hasher.hash("the password of nobody")
        try:
            self._hasher.verify(self._nobody if password_hash is None else password_hash, password)
        except (VerificationError, InvalidHashError):
            return False
        return password_hash is not None
