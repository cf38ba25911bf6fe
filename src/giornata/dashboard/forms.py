"""Forms of pages: what was typed as a request, and the page again with the reason of a refusal."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ValidationError

from giornata.dashboard.visit import SubmittedForm, Visit, see
from giornata.domain.errors import Conflict, GiornataError, InvalidInput
from giornata.web.error_status import status_of

LONGEST_NUMBER = 20


def asked_of(kind: type[BaseModel], given: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Return the request of this kind, or None and each fault by the name of its field."""
    try:
        return kind.model_validate(given), {}
    except ValidationError as error:
        return None, {str((each["loc"] or ("form",))[0]): f"{each['msg']}." for each in error.errors()}


def whole_number(form: SubmittedForm, name: str, faults: dict[str, str]) -> int | None:
    """Return the number in this field, None for an empty one. A text that is none is noted in `faults`."""
    given = form.get(name)
    digits = given.removeprefix("-")
    if given and not (digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER):
        faults[name] = "Type a whole number, or leave the field empty."
        return None
    return int(given) if given else None


def changed(visit: Visit, verb: Callable[[], Any], shown: Callable[..., Response], path: str, said: str) -> Response:
    """Call the verb, and show its page again with the reason when it is refused."""
    try:
        verb()
    except (Conflict, InvalidInput) as error:
        return shown(visit, refusal=sentence_of(error))
    return see(visit.url(path, said=said))


def sentence_of(error: GiornataError) -> str:
    """Return what an error says, as a sentence."""
    text = "; ".join(each.message for each in error.faults) if isinstance(error, InvalidInput) else error.public
    return f"{text[:1].upper()}{text[1:]}."


def status_of_page(faults: Mapping[str, str] | None, refusal: str) -> int:
    """Return the status of a page that shows these faults or this refusal."""
    return status_of(Conflict("")) if refusal else HTTPStatus.BAD_REQUEST if faults else HTTPStatus.OK
