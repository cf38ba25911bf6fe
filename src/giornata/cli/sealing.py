"""Fernet (AES-128-CBC with HMAC-SHA256, from the cryptography package) as the sealer of secrets."""

from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from giornata.domain.errors import Fault, InvalidInput, Unavailable

HINT = "make one with: python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"


class FernetSealer:
    """Implements `giornata.control.ports.sealing.Sealer`. Raises InvalidInput for what is not a key."""

    seals = True

    def __init__(self, key: str) -> None:
        try:
            self._fernet = Fernet(key)
        except ValueError:
            message = "is not 32 bytes in URL-safe base64"
            raise InvalidInput([Fault(where="secrets_key", message=message, hint=HINT)]) from None

    def seal(self, text: str) -> str:
        """As the protocol says."""
        return self._fernet.encrypt(text.encode()).decode()

    def unseal(self, sealed: str) -> str:
        """As the protocol says."""
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken:
            raise Unavailable("a secret was sealed with another key than the setting secrets_key") from None


def key_in(file: Path) -> str | None:
    """The key that an embedded installation has made for itself, if it has."""
    return file.read_text().strip() if file.is_file() else None


def new_key() -> str:
    """A fresh one."""
    return Fernet.generate_key().decode()
