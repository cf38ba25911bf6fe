"""Fields that mean something only beside others."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


def meaningless(spec: "TrainSpec", *names: str, because: str, unless: bool) -> list[tuple[bool, str]]:
    """Contradictions, as (whether it is one, what to say of it): the fields with another value than by default."""
    fields = type(spec).model_fields
    return [
        (
            not unless and getattr(spec, name) != fields[name].get_default(call_default_factory=True),
            f"{name} means nothing {because}",
        )
        for name in names
    ]
