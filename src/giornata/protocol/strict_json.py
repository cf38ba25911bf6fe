"""JSON is taken as it is written: `"1"` and `true` are no numbers, and `1` is no truth value.

`1` is good for a number with a fraction, and `1.0` for a whole number, as JSON Schema has it.
"""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

T = TypeVar("T")
_CONVERTED = frozenset({"int_type", "float_type", "bool_type"})


def check_as_written(model: type[BaseModel], value: Any) -> None:
    """Check that the JSON value is one of the model without any conversion. Raises ValidationError with every fault.

    A value that has other faults alone is left to whoever validates it.
    """
    converted = {detail["loc"]: detail for detail in _converted(model, value)}
    if not converted:
        return
    others = [detail for detail in _faults(lambda: model.model_validate(value)) if detail["loc"] not in converted]
    raise ValidationError.from_exception_data(model.__name__, list(map(_again, (*converted.values(), *others))))


class _AsWritten:
    """Checks what came before it is converted."""

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_check(source), handler(source))


Json = Annotated[T, _AsWritten()]
"""`Json[SubmitJob]`: the body of a request."""


def _check(model: type[BaseModel]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, dict):
            check_as_written(model, value)
        return value

    return check


def _converted(model: type[BaseModel], value: Any) -> Iterator[ErrorDetails]:
    """The numbers and truth values that are written as something else.

    The second pass looks into lists of models that prepare their input: to these a list comes as Python's.
    """
    text = _text(value)
    for detail in (
        *_faults(lambda: model.model_validate_json(text, strict=True)),
        *_faults(lambda: model.model_validate(_with_tuples(value), strict=True)),
    ):
        whole = isinstance(detail["input"], float) and detail["input"].is_integer()
        if detail["type"] == "json_invalid":
            raise _too_deep()
        if detail["type"] in _CONVERTED and not (detail["type"] == "int_type" and whole):
            yield detail


def _faults(validate: Callable[[], object]) -> list[ErrorDetails]:
    try:
        validate()
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _again(detail: ErrorDetails) -> InitErrorDetails:
    """The same fault, to be raised once more."""
    said = PydanticCustomError(detail["type"], detail["msg"], detail.get("ctx"))
    return InitErrorDetails(type=said, loc=detail["loc"], input=detail["input"])


def _with_tuples(value: Any) -> Any:
    """Lists directly in the object, as tuples."""
    return {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> PydanticCustomError:
    return PydanticCustomError("too_deep", "is nested too deeply; at most 200 levels are taken")
