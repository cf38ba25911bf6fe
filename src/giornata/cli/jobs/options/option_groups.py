"""Options that commands have in common: a dataclass is a group of them, and each of its fields an option."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer reads it: each parameter that is a dataclass gives way to the fields of the
    dataclass. Every field has a default."""
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    expanded: list[Parameter] = []
    for each in signature(command).parameters.values():
        if (group := groups.get(each.name)) is None:
            expanded.append(each.replace(annotation=kinds[each.name], kind=Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(group, include_extras=True)
        expanded += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
            for field in fields(group)
        ]

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    called.__signature__ = Signature(expanded)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in expanded}
    return called
