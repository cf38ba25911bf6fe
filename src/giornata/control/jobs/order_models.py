"""The models that an order of pictures names, brought before the transaction that submits it."""

from collections.abc import Iterator

from giornata.control.access.permissions import require_user
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.prepare_job import prepare_job
from giornata.control.jobs.spec_faults import parse_spec
from giornata.control.models.resolve import bring_models, is_brought
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.picture import ORDER_KINDS
from giornata.protocol.generation.named_models import named_models
from giornata.protocol.jobs import SubmitJob


def bring_order_models(ctx: Context, caller: Caller, request: SubmitJob) -> None:
    """Bring the files that an order names by reference, or by sha256, into the registry. It may download them.

    Call it before the order's submission. It does nothing for any other job, and for a spec that the submission
    refuses anyway. Raises Forbidden; InvalidInput with every fault of the request when a reference names nothing
    usable; Unavailable when a source fails.
    """
    if request.kind not in ORDER_KINDS:
        return
    require_user(caller)
    parsed, faults = parse_spec(request.kind, request.spec, as_written=True)
    if faults or parsed is None:
        return
    places = [each for each in named_models(parsed.model_dump(mode="json")) if is_brought(each)]
    if places and (found := bring_models(ctx, caller.project_id, places)):
        raise InvalidInput([*found, *_others(ctx, caller, request, found)])


def _others(ctx: Context, caller: Caller, request: SubmitJob, found: list[Fault]) -> Iterator[Fault]:
    """Yield the faults that the submission finds at other places: of a place one fault is enough."""
    places = {fault.where.removesuffix(".sha256") for fault in found}
    try:
        with ctx.store.read() as tx:
            prepare_job(ctx, tx, caller, request, notes_use=False)
    except InvalidInput as refusal:
        yield from (fault for fault in refusal.faults if fault.where.removesuffix(".sha256") not in places)
