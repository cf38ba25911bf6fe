"""Delete the files of chosen pictures. Their numbers and seeds stay with the order."""

from giornata.control.access.permissions import require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.remove_bytes import remove_bytes
from giornata.control.jobs.reading.gallery import keys_of, own_orders
from giornata.control.ports.user_queries.end_of_life_store import TakenRows
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict
from giornata.protocol.orders.gallery import ChosenPictures, DeletedPictures
from giornata.protocol.project.admin import Scope


def delete_pictures(ctx: Context, caller: Caller, request: ChosenPictures) -> DeletedPictures:
    """Delete the files of these pictures, and their stars and tags. Pictures without a file are passed over.

    Raises Forbidden, NotFound when one of the orders is not the caller's, and Conflict when one is pinned; then
    nothing is deleted.
    """
    require_scope(caller, Scope.GENERATE)
    keys, now_ms = keys_of(request.pictures), ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        orders = own_orders(tx, caller, keys)
        if pinned := [each for order_id in orders for each in tx.deletions.pinned_of_job(order_id)]:
            raise Conflict(f"{', '.join(pinned)} is pinned; unpin it first: giornata unpin {pinned[0]}")
        objects = tx.picture_gallery.take_bytes(keys, project_id=caller.project_id)
        for order_id in orders:
            changes = {"pictures": sum(key.order_id == order_id for key in keys)}
            record_call(tx, caller, AuditVerb.PICTURE_DELETE, order_id, at_ms=now_ms, changes=changes)
    freed = remove_bytes(ctx, caller.project_id, TakenRows(objects=objects), asked_before_ms=now_ms)
    return DeletedPictures(objects=freed.objects, size_bytes=freed.size_bytes)
