"""Secrets of a project: written, listed by name, deleted, and never read back."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, PlainSerializer, SecretStr, StringConstraints

from giornata.protocol.model import Message, Reply

NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
SecretName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]

Confidential = Annotated[
    SecretStr, PlainSerializer(lambda value: value.get_secret_value(), return_type=str, when_used="json")
]
"""Text that shows itself in no log and no error: only as JSON, on its way to whom it is meant for."""


class SetSecret(Message):
    """`PUT /v1/secrets/{name}`. The value can be replaced and deleted, and cannot be asked for."""

    value: Confidential = Field(
        min_length=8, max_length=4096, description="Value of the secret, such as a token of the hub."
    )


class Secret(Reply):
    """A secret without its value."""

    name: str
    created_at: datetime
    changed_at: datetime
    created_by: str | None = Field(None, description="The person or the key that gave it its value; null: not known.")


class SecretPage(Reply):
    """`GET /v1/secrets`: all of the project's, by name."""

    items: tuple[Secret, ...]
    next: str | None = None
