"""Refuse a submission with all of its faults: those of its own fields hide none of the spec that it stands for."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError

from giornata.api.replies.problems import input_faults
from giornata.control.jobs.submission.order_models import faults_beside
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.request_fields import spec_fields
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.orders.order_pictures import GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSubmission:
    """A submission without those of its own fields that could not be read.

    `in_words` turns faults of the spec into faults of the request, `faults` are found already, and `unread` are
    fields that the spec lacks.
    """

    request: SubmitJob
    in_words: Callable[[Sequence[Fault]], list[Fault]] = list
    faults: Sequence[Fault] = ()
    unread: frozenset[str] = frozenset()


Reader = Callable[[Mapping[str, Any], frozenset[str]], ReadSubmission | None]
"""Reads what is left of a body, without the fields named beside it. None: it does not tell what is asked for. Raises
ValidationError."""


class SubmissionRoute(APIRoute):
    """A route that tells the faults of a spec beside those of the fields around it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with whole refusals where the body is a submission."""
        handle = super().get_route_handler()
        read = None if self.body_field is None else _READERS.get(self.body_field.field_info.annotation)

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                if read is None:
                    raise
                raise InvalidInput(await all_faults(request, error, read)) from None

        return handled


async def all_faults(request: Request, error: RequestValidationError, read: Reader) -> list[Fault]:
    """Return the faults of a body that the framework refused, and what is wrong with the spec of the rest.

    Raises Forbidden where the caller may not submit this.
    """
    faults = input_faults(request, error)
    caller = getattr(request.state, "caller", None)
    is_whole = any(fault.where == "body" for fault in faults)  # such as one that is nested too deeply
    if caller is None or is_whole or not isinstance(error.body, dict):
        return faults
    faulty = frozenset(fault.where.partition(".")[0] for fault in faults)
    try:
        found = read({name: value for name, value in error.body.items() if name not in faulty}, faulty)
    except ValidationError:
        found = None
    if found is None:
        return faults
    ctx = request.app.state.context
    look = partial(faults_beside, ctx, caller, found.request, unread=found.unread)
    beside = await anyio.to_thread.run_sync(look)
    more = found.in_words([*found.faults, *beside])
    return [*faults, *(each for each in more if each.where.partition(".")[0] not in faulty)]


def _read_job(body: Mapping[str, Any], unread: frozenset[str]) -> ReadSubmission | None:
    if "kind" in unread:
        return None
    return ReadSubmission(request=SubmitJob.model_validate(body))


def _read_generation(body: Mapping[str, Any], _: frozenset[str]) -> ReadSubmission:
    read = GenerationRequest.model_validate(body)
    fields = spec_fields(read.fields())
    given = read.model_dump(include=set(GenerationRequest.model_fields), exclude_unset=True)
    asked = SubmitJob.model_validate({**given, "kind": GENERATE_KIND, "spec": fields.spec})
    return ReadSubmission(request=asked, in_words=fields.in_words_of_request, faults=fields.faults)


_READERS: Mapping[Any, Reader] = {SubmitJob: _read_job, GenerationRequest: _read_generation}
