"""Bodies in the form of HTML and OAuth: `application/x-www-form-urlencoded`."""

from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from giornata.api.replies.problems import faults_of
from giornata.domain.errors import Fault, InvalidInput

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 20
M = TypeVar("M", bound=BaseModel)


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of the body. Raises InvalidInput for another body, and for a field that comes twice."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise InvalidInput([Fault(where="body", message="is not a form", hint=f"send it with Content-Type: {FORM}")])
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise InvalidInput([Fault(where="body", message=f"cannot be read: {error}")]) from None
    names = [name for name, _ in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(Fault(where="body", message=f"{name[:64]} comes more than once") for name in twice)
    return dict(fields)


Fields = Annotated[dict[str, str], Depends(form_fields)]


def message_of(model: type[M], fields: dict[str, str]) -> M:
    """Return the fields as a message. Raises InvalidInput with every fault."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(faults_of(error.errors(include_url=False))) from None
