"""Find the faults of a spec, in words that name its fields."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from giornata.control.text_limits import text_faults
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.checks.contradictions import order_contradictions
from giornata.protocol.generation.checks.prompt_faults import prompt_faults
from giornata.protocol.generation.checks.readable import Unread, readable
from giornata.protocol.generation.preprocess import PreprocessSpec, preprocess_faults
from giornata.protocol.generation.schedulers import with_one_scheduler
from giornata.protocol.generation.specs import OrderFields
from giornata.protocol.model import Message
from giornata.protocol.pretraining_checks import fault_of, folder_faults
from giornata.protocol.specs import KINDS, OWN_KIND_PREFIX, PLATFORM_KINDS, PretrainSpec, TrainSpec, spec_type
from giornata.protocol.strict_json import check_as_written
from giornata.protocol.training.foreign_names import NOT_OFFERED
from giornata.protocol.training.optimization import steps_of

ALIKE = 0.75
"""A field as near as that may be meant; of two further apart the one is seldom the other."""
NO_DATASET = "ds_0"
"""Stands in a spec for a dataset that is not there yet, so that the rest can be checked."""

ParsedSpec = tuple[Message | None, list[Fault]]
"""A spec of its kind, and its faults; None for a spec that cannot be one."""


def parse_spec(
    kind: str, spec: Mapping[str, Any], *, as_written: bool = False, unread: Collection[str] = ()
) -> ParsedSpec:
    """Return the spec of this kind, or every fault that keeps it from being one.

    Contradictions between fields are looked for when each field is fine by itself; those of an order between the
    fields that are. `as_written`: text is no number, as in any other JSON that comes in. `unread` are fields of an
    order that the spec lacks because they could not be read.
    """
    expected = spec_type(kind)
    if kind in PLATFORM_KINDS:
        hint = "the server itself makes jobs of this kind"
        return None, [Fault(where="kind", message=f"{kind} is the platform's own kind", hint=hint)]
    if expected is None:
        return None, [_unknown_kind(kind)]
    faults = [fault for name, value in spec.items() for fault in _deep_text_faults(f"spec.{name}", value)]
    if issubclass(expected, OrderFields):
        faults += prompt_faults(spec)
        spec = with_one_scheduler(spec)
    try:
        if as_written:
            check_as_written(expected, spec)
        parsed = expected.model_validate(spec)
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = [fault for detail in details for fault in _faults(expected, detail)]
        others = _of_the_rest(expected, spec, details, unread) if issubclass(expected, OrderFields) else []
        return None, [*found, *others, *faults]
    if isinstance(parsed, PretrainSpec):
        faults += [replace(each, where=f"spec.config.{each.where}") for each in folder_faults(parsed.config)]
    elif isinstance(parsed, OrderFields):
        faults += order_contradictions(parsed, Unread(settings=frozenset(unread)))
    elif isinstance(parsed, PreprocessSpec):
        faults += preprocess_faults(parsed)
    return parsed, faults


def _of_the_rest(
    expected: type[OrderFields], spec: Mapping[str, Any], details: Iterable[ErrorDetails], unread: Collection[str]
) -> list[Fault]:
    """Return the contradictions between those fields of an order that have no fault of their own."""
    meant = [near for each in details if each["type"] == "extra_forbidden" for near in _near(expected, each)]
    places = [each["loc"] for each in details if each["loc"]]
    rest = readable(expected, spec, places, unread=[*unread, *meant])
    found: list[Fault] = []
    for each in (*([rest] if places else []), rest.countable()):
        try:
            return [*found, *order_contradictions(expected.model_validate(each.fields), each.unread)]
        except ValidationError as error:  # how many pictures they make: each field is fine by itself
            whole = (detail for detail in error.errors(include_url=False) if not detail["loc"])
            found += [fault for detail in whole for fault in _faults(expected, detail)]
    return found


def parse_plain(expected: type[Message], spec: Mapping[str, Any]) -> ParsedSpec:
    """Return the spec as this message, or every fault that keeps it from being one."""
    faults = [fault for name, value in spec.items() for fault in _deep_text_faults(f"spec.{name}", value)]
    try:
        return expected.model_validate(spec), faults
    except ValidationError as error:
        found = [fault for detail in error.errors(include_url=False) for fault in _faults(expected, detail)]
        return None, [*found, *faults]


def in_steps(spec: TrainSpec, *, pictures: int) -> TrainSpec:
    """Return the spec with its epochs over so many pictures (repeats counted) turned into steps.

    A spec that counts in steps stays as it is. Raises InvalidInput when it makes no sense with that many steps."""
    if spec.num_train_epochs is None:
        return spec
    steps = steps_of(spec, pictures=pictures)
    given = spec.model_dump(mode="json", exclude={"num_train_epochs"}) | {"max_train_steps": steps}
    counted, faults = parse_spec("train", given)
    if not isinstance(counted, TrainSpec):
        epochs = f"num_train_epochs {spec.num_train_epochs} of {pictures} pictures are {steps} steps"
        raise InvalidInput([*faults, Fault(where="spec.num_train_epochs", message=epochs)])
    return counted


def _unknown_kind(kind: str) -> Fault:
    known = ", ".join(sorted(KINDS))
    near = difflib.get_close_matches(kind, KINDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known kinds: {known}; your own begin with {OWN_KIND_PREFIX}"
    return Fault(where="kind", message=f"there is no kind {kind}", hint=hint)


def _faults(expected: type[BaseModel], detail: ErrorDetails) -> Iterable[Fault]:
    place = ".".join(str(part) for part in detail["loc"])
    where = f"spec.{place}" if place else "spec"
    match detail["type"]:
        case _ if expected is PretrainSpec and detail["loc"][:1] == ("config",):
            yield fault_of(detail, under="spec.")
        case "extra_forbidden" if place in _names(expected):
            yield Fault(where=where, message="the same field is given under another name too", hint="give it once")
        case "extra_forbidden" if place in NOT_OFFERED:
            yield Fault(where=where, message="is not a field here", hint=NOT_OFFERED[place])
        case "extra_forbidden":
            near = _near(expected, detail)
            yield Fault(
                where=where, message="unknown field", hint=f"did you mean {near[0]}?" if near else "remove it"
            )
        case "missing":
            field = expected.model_fields.get(place)
            yield Fault(where=where, message="is required", hint=(field.description or "") if field else "")
        case "value_error" if not place:
            yield from _contradictions(expected, _words(detail))
        case _:
            yield Fault(where=where, message=_words(detail) + _given(detail))


def _near(expected: type[BaseModel], detail: ErrorDetails) -> list[str]:
    """Return the field that an unknown one may mean; none, if there is none like it."""
    place = ".".join(str(part) for part in detail["loc"])
    return difflib.get_close_matches(place, _names(expected), n=1, cutoff=ALIKE)


def _contradictions(expected: type[BaseModel], message: str) -> list[Fault]:
    """Return the contradictions of a spec, which joins them with semicolons. Each begins with a field; any other
    text is advice.
    """
    faults: list[Fault] = []
    for piece in message.split("; "):
        field = piece.split(" ", 1)[0]
        if field in expected.model_fields:
            faults.append(Fault(where=f"spec.{field}", message=piece))
        elif faults:
            faults[-1] = replace(faults[-1], hint=piece)
        else:
            faults.append(Fault(where="spec", message=piece))
    return faults


def _names(expected: type[BaseModel]) -> list[str]:
    names = set(expected.model_fields)
    for field in expected.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            names |= {choice for choice in field.validation_alias.choices if isinstance(choice, str)}
    return sorted(names)


def _words(detail: ErrorDetails) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _given(detail: ErrorDetails) -> str:
    value = detail["input"]
    if isinstance(value, str | int | float | bool):
        shown = repr(value)
        return f"; it is {shown}" if len(shown) <= 80 else ""
    return ""


def _deep_text_faults(where: str, value: Any) -> Iterable[Fault]:
    # Walked with a list, not by recursion: how deep it goes is the sender's choice.
    waiting = [(where, value)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, str):
            yield from text_faults(where, value)
        elif isinstance(value, Mapping):
            waiting += [(f"{where}.{name}", inner) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{where}.{number}", inner) for number, inner in enumerate(value)]
