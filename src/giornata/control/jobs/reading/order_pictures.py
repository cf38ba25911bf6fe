"""Read the pictures of an order for its owner."""

from collections.abc import Mapping, Sequence

from giornata.control.access.permissions import require_any
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.job_reply import job_reply
from giornata.control.jobs.reading.read_jobs import own_job, read_job
from giornata.control.pages import check_after, check_limit
from giornata.control.ports.node_queries.picture_store import PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobInShort
from giornata.control.storage.signed_urls import signed_get
from giornata.control.text_limits import is_id
from giornata.domain.errors import Fault, InvalidInput, NotFound, TooLarge
from giornata.domain.generation.picture import PictureState, picture_key
from giornata.domain.jobs.job import JobState
from giornata.protocol.generation.picture import ImageFormat
from giornata.protocol.node.pictures import PictureFlag
from giornata.protocol.orders.order_pictures import Generation, OrderPicture, OrderPicturePage
from giornata.protocol.project.admin import Scope
from giornata.protocol.training.file_names import output_name_of

GENERATION_PAGE = 500
"""Pictures in the reply to a request that waits for them."""
LONGEST_MARK = 6
"""Of an order's id, so many last characters tell its files from those of another order with the same name."""
ENDINGS: Mapping[ImageFormat, str] = {ImageFormat.PNG: "png", ImageFormat.JPEG: "jpg", ImageFormat.WEBP: "webp"}
MOST_NUMBER = 2**31 - 2


def read_state(ctx: Context, caller: Caller, job_id: str) -> JobState:
    """Return the state of an order, by one short statement. Raises Forbidden, NotFound."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        return JobState(order_in_short(tx, caller, job_id).state)


def read_pictures(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> OrderPicturePage:
    """Return pictures with numbers above `after` (-1: all), by number. Raises Forbidden, NotFound, InvalidInput."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    _check(after, limit)
    with ctx.store.read() as tx:
        return _page(ctx, tx, caller, job_id, after=after, limit=limit)


def read_ended(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> OrderPicturePage:
    """Return pictures that have ended at places above `after`, in the order in which they ended.

    Each picture comes once, however often the reading is taken up again behind the last place. Raises Forbidden,
    NotFound, InvalidInput.
    """
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    _check(after, limit)
    with ctx.store.read() as tx:
        order = order_in_short(tx, caller, job_id)
        counted = tx.picture_orders.order(job_id)
        if counted is None or counted.ended <= after:
            return OrderPicturePage(items=())  # looked up by a key, and asked again and again by each stream
        rows = tx.picture_orders.ended_after(job_id, project_id=caller.project_id, place=after, limit=limit + 1)
    items = _replies(ctx, order, rows[:limit])
    return OrderPicturePage(items=items, next=items[-1].id if len(rows) > limit else None)


def read_picture(ctx: Context, caller: Caller, job_id: str, number: int) -> OrderPicture:
    """Return one picture of an order. Raises Forbidden, NotFound."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        order = order_in_short(tx, caller, job_id)
        rows = tx.picture_orders.page(job_id, project_id=caller.project_id, after=number - 1, limit=1)
    if not rows or rows[0].number != number:
        raise NotFound(f"{job_id} has no picture {number}")
    return _replies(ctx, order, rows)[0]


def read_generation(ctx: Context, caller: Caller, job_id: str) -> Generation:
    """Return an order with its first pictures. Raises Forbidden, NotFound."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        page = _page(ctx, tx, caller, job_id, after=-1, limit=GENERATION_PAGE)
        return Generation(job=read_job(ctx, tx, caller, job_id), pictures=page.items, next=page.next)


def read_order(ctx: Context, caller: Caller, job_id: str, *, limit: int) -> Generation:
    """Return an order with its first pictures; its money and its leases are left out. Raises Forbidden, NotFound."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        job = job_reply(own_job(tx, caller, job_id), (), names=None)
        page = _page(ctx, tx, caller, job_id, after=-1, limit=limit)
    return Generation(job=job, pictures=page.items, next=page.next)


def picture_bytes(ctx: Context, caller: Caller, job_id: str) -> list[tuple[OrderPicture, bytes]]:
    """Return the pictures of a small order that have files, with their bytes. Raises Forbidden, NotFound, and
    what storage raises."""
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        order = order_in_short(tx, caller, job_id)
        rows = tx.picture_orders.page(job_id, project_id=caller.project_id, after=-1, limit=GENERATION_PAGE)
    found = [(picture, storage_key(row)) for picture, row in zip(_replies(ctx, order, rows), rows, strict=True)]
    return [(picture, b"".join(ctx.blobs.read(key))) for picture, key in found if key is not None]


def picture_file(
    ctx: Context, caller: Caller, job_id: str, number: int, *, most_bytes: int
) -> tuple[OrderPicture, bytes]:
    """Return one picture of an order with its bytes. Raises Forbidden, NotFound, also for a picture without a file,
    TooLarge, and what storage raises.
    """
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        order = order_in_short(tx, caller, job_id)
        rows = tx.picture_orders.page(job_id, project_id=caller.project_id, after=number - 1, limit=1)
    key = storage_key(rows[0]) if rows and rows[0].number == number else None
    if key is None:
        raise NotFound(f"{job_id} has no picture {number} with a file")
    picture = _replies(ctx, order, rows)[0]
    if (picture.size_bytes or 0) > most_bytes:
        raise TooLarge(f"the picture has {picture.size_bytes} bytes; download it by its signed URL")
    return picture, b"".join(ctx.blobs.read(key))


def _check(after: int, limit: int) -> None:
    check_limit(limit)
    check_after(after, where="after")
    if after > MOST_NUMBER:
        raise InvalidInput([Fault(where="after", message=f"{after} is out of range", hint="pass the last one seen")])


def order_in_short(tx: Transaction, caller: Caller, job_id: str) -> JobInShort:
    """Return an order of the caller's project, without its spec. Raises NotFound."""
    found = tx.job_reads.in_short(job_id, project_id=caller.project_id) if is_id(job_id) else None
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    return found


def _page(ctx: Context, tx: Transaction, caller: Caller, job_id: str, *, after: int, limit: int) -> OrderPicturePage:
    order = order_in_short(tx, caller, job_id)
    rows = tx.picture_orders.page(job_id, project_id=caller.project_id, after=after, limit=limit + 1)
    items = _replies(ctx, order, rows[:limit])
    return OrderPicturePage(items=items, next=items[-1].number if len(rows) > limit else None)


def _replies(ctx: Context, order: JobInShort, rows: Sequence[PictureRow]) -> tuple[OrderPicture, ...]:
    return tuple(picture_reply(ctx, order, row) for row in rows)


def picture_reply(ctx: Context, order: JobInShort, row: PictureRow) -> OrderPicture:
    """Return a picture as its owner sees it."""
    format_ = ImageFormat(row.differs.get("image_format") or order.image_format or ImageFormat.PNG)
    media_type = f"image/{format_}"
    filename, key = f"{_stem(order)}-{row.number:04d}.{ENDINGS[format_]}", storage_key(row)
    return OrderPicture(
        id=row.place or 0,
        number=row.number,
        state=row.state,
        seed=row.seed,
        prompt=row.differs.get("prompt"),
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        media_type=media_type,
        flags=_flag_names(row.flags),
        error=row.error if row.state is PictureState.FAILED else None,
        last_error=None if row.state is PictureState.FAILED else row.error,
        filename=filename,
        request=None if key is None else signed_get(ctx, key, filename=filename, media_type=media_type),
    )


def storage_key(row: PictureRow) -> str | None:
    """Return the place of the picture's file in storage; None for a picture without a file."""
    if row.state is not PictureState.SUCCEEDED or row.sha256 is None or row.lease is None:
        return None
    return picture_key(row.project_id, row.lease, row.sha256)


def _flag_names(flags: int) -> tuple[str, ...]:
    return tuple(str(flag.name).lower().replace("_", "-") for flag in PictureFlag if flag & flags)


def _stem(order: JobInShort) -> str:
    name = output_name_of(order.name)
    return order.id if name is None or order.name == order.id else f"{name}-{order.id[-LONGEST_MARK:]}"
