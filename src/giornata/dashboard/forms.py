"""Forms of pages: what was typed as a request, and the page again with the reason of a refusal."""

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ValidationError

from giornata.dashboard.visit import SubmittedForm, Visit, see
from giornata.dashboard.words import as_sentence
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Conflict, Fault, GiornataError, InvalidInput
from giornata.web.error_status import status_of

LONGEST_NUMBER = 20
MOST_DOLLARS = 10**9


def asked_of(kind: type[BaseModel], given: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Return the request of this kind, or None and each fault by the name of its field."""
    try:
        return kind.model_validate(given), {}
    except ValidationError as error:
        return None, {str((each["loc"] or ("form",))[0]): _said(each) for each in error.errors()}


def _said(detail: Mapping[str, Any]) -> str:
    """Return what a person has to type instead of what is refused."""
    given, limits = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "too_short" | "string_too_short" if isinstance(given, str):
            return f"Type at least {limits['min_length']} characters." if given else "Type something here."
        case "too_long" | "string_too_long" if isinstance(given, str):
            return f"Type at most {limits['max_length']} characters."
        case "greater_than_equal":
            return f"Type a number that is not below {limits['ge']}."
        case "less_than_equal":
            return f"Type a number that is not above {limits['le']}."
        case _:
            return f"{detail['msg']}."


def whole_number(form: SubmittedForm, name: str, faults: dict[str, str]) -> int | None:
    """Return the number in this field, None for an empty one. A text that is none is noted in `faults`."""
    given = form.get(name)
    number = number_in(given)
    if given and number is None:
        faults[name] = "Type a whole number, or leave the field empty."
    return number


def number_in(text: str) -> int | None:
    """Return the whole number that a text is; None for every other text, and for one that is longer than any use."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER else None


def micro_usd_in(text: str) -> int:
    """Return the dollars that a text names, in micro-dollars.

    Raises ValueError for a text that is no number, and for an amount that is no use.
    """
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not dollars.is_finite() or not -MOST_DOLLARS <= dollars <= MOST_DOLLARS:
        raise ValueError(text)
    return round(dollars * MICRO_USD)


def changed(visit: Visit, verb: Callable[[], Any], shown: Callable[..., Response], path: str, said: str) -> Response:
    """Call the verb, and show its page again with the reason when it is refused."""
    try:
        verb()
    except (Conflict, InvalidInput) as error:
        return shown(visit, refusal=sentence_of(error))
    return see(visit.url(path, said=said))


def said_of(fault: Fault) -> str:
    """Return what stands beside the field of a fault."""
    return as_sentence(fault.message) + (f" ({fault.hint})" if fault.hint else "")


def sentence_of(error: GiornataError) -> str:
    """Return what an error says, as a sentence."""
    text = "; ".join(each.message for each in error.faults) if isinstance(error, InvalidInput) else error.public
    return f"{text[:1].upper()}{text[1:]}."


def status_of_page(faults: Mapping[str, str] | None, refusal: str) -> int:
    """Return the status of a page that shows these faults or this refusal."""
    return status_of(Conflict("")) if refusal else HTTPStatus.BAD_REQUEST if faults else HTTPStatus.OK
