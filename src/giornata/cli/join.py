"""One word that a machine needs to join: `https://SERVER#KEY`."""

from dataclasses import dataclass

from giornata.domain.errors import Fault, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where the server is, and a key of scope node. The key stands behind a `#`, which no request carries."""

    url: str
    key: str

    def __str__(self) -> str:
        return f"{self.url}#{self.key}"


def read_invitation(text: str) -> Invitation:
    """From its text. Raises InvalidInput."""
    url, _, key = text.partition("#")
    if not url.startswith(("http://", "https://")) or not key:
        hint = "giornata key create --scope node prints it"
        raise InvalidInput([Fault(where="--join", message="is not https://SERVER#KEY", hint=hint)])
    return Invitation(url=url, key=key)
