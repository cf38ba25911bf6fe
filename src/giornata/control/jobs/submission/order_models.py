"""Prepare an order of pictures before the transaction that submits it: bring its models, and look at its masks."""

from collections.abc import Collection, Iterator

from giornata.control.access.permissions import require_write
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.submission.mask_faults import mask_faults
from giornata.control.jobs.submission.prepare_job import prepare_job
from giornata.control.jobs.submission.spec_faults import ParsedSpec, parse_spec
from giornata.control.models.resolve import bring_models, is_brought
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.generation.checks.named_models import named_models
from giornata.protocol.jobs import SubmitJob


def bring_order_models(ctx: Context, caller: Caller, request: SubmitJob) -> ParsedSpec | None:
    """Bring the files that an order names by reference, or by sha256, into the registry. It may download them.
    Look again at registered LoRAs, and compare the sizes of masks with those of their pictures.

    Call it before the order's submission. It does nothing for any other job, and brings no model for a spec that the
    submission refuses anyway. Returns the order's spec as parsed, so that the submission need not parse it again.
    Raises Forbidden; InvalidInput with every fault of the request when a model is of no use, or a mask is of another
    size; Unavailable when a source fails.
    """
    if request.kind not in ORDER_KINDS:
        return None
    require_write(caller, request.kind)
    parsed, faults = parse_spec(request.kind, request.spec, as_written=True)
    found = mask_faults(ctx, caller.project_id, request.spec)
    if not faults and parsed is not None:
        named = named_models(parsed.model_dump(mode="json"))
        places = [each for each in named if is_brought(each) or each.role == "lora"]
        found += bring_models(ctx, caller.project_id, places) if places else []
    if found:
        raise InvalidInput([*found, *_others(ctx, caller, request, found, parsed_spec=(parsed, faults))])
    return parsed, faults


def faults_beside(ctx: Context, caller: Caller, request: SubmitJob, *, unread: Collection[str] = ()) -> list[Fault]:
    """Return every fault of a job that is refused for something else. `unread` are fields that its spec lacks
    because they could not be read.

    It brings no model. Raises Forbidden.
    """
    require_write(caller, request.kind)
    parsed = parse_spec(request.kind, request.spec, as_written=True, unread=unread)
    found = mask_faults(ctx, caller.project_id, request.spec) if request.kind in ORDER_KINDS else []
    return [*found, *_others(ctx, caller, request, found, parsed_spec=parsed, is_complete=False)]


def _others(
    ctx: Context,
    caller: Caller,
    request: SubmitJob,
    found: list[Fault],
    *,
    parsed_spec: ParsedSpec,
    is_complete: bool = True,
) -> Iterator[Fault]:
    """Yield the faults that the submission finds at other places: of a place one fault is enough."""
    places = {fault.where.removesuffix(".sha256") for fault in found}
    try:
        with ctx.store.read() as tx:
            prepare_job(ctx, tx, caller, request, parsed_spec=parsed_spec, notes_use=False, is_complete=is_complete)
    except InvalidInput as refusal:
        yield from (fault for fault in refusal.faults if fault.where.removesuffix(".sha256") not in places)
