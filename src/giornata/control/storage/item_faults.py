"""Find the faults of a list of pictures before anybody looks at them."""

from collections.abc import Iterable, Mapping, Sequence

from giornata.control.policy import Policy
from giornata.control.ports.user_queries.records import BlobRecord
from giornata.control.text_limits import text_faults
from giornata.domain.errors import Fault
from giornata.protocol.uploads import DatasetItem


def item_faults(policy: Policy, items: Sequence[DatasetItem], *, max_pictures: int) -> Iterable[Fault]:
    """Yield faults of counts and captions, and of names that mean two things."""
    count = len({item.sha256 for item in items})
    yield from few_faults(policy, count, where="items")
    if count > max_pictures:
        hint = "leave some out, or ask the operator for a higher limit: giornata project limits"
        yield Fault(where="items", message=f"{count} pictures are more than {max_pictures}", hint=hint)
    seen: dict[str, DatasetItem] = {}
    for item in items:
        yield from _caption_faults(item)
        first = seen.setdefault(item.name, item)
        if first.sha256 != item.sha256:
            yield Fault(where=item.name, message="two different pictures have this name", hint="rename one of them")
        elif first.caption != item.caption:
            yield Fault(where=item.name, message="is given twice with different captions", hint="keep one of them")
        elif first.repeats != item.repeats:
            yield Fault(where=item.name, message="is given twice with different repeats", hint="keep one of them")
        elif first.resolution != item.resolution:
            message = "is given twice with different resolutions"
            yield Fault(where=item.name, message=message, hint="give each its own name")


def resolution_faults(resolutions: Iterable[int | None], *, enable_bucket: bool) -> Iterable[Fault]:
    """Yield faults of pictures with a resolution of their own in a job that trains all pictures at one size."""
    count = sum(resolution is not None for resolution in resolutions)
    if count and not enable_bucket:
        message = f"is false, and {count} pictures of the dataset have a resolution of their own"
        yield Fault(where="spec.enable_bucket", message=message, hint="set it, or leave out those resolutions")


def few_faults(policy: Policy, count: int, *, where: str) -> Iterable[Fault]:
    """Yield a fault when there are too few different pictures."""
    if count < policy.min_pictures:
        hint = "add more; a subject is learned well from 5 to 50"
        yield Fault(where=where, message=f"{count} pictures are fewer than {policy.min_pictures}", hint=hint)


def missing_faults(policy: Policy, items: Sequence[DatasetItem], blobs: Mapping[str, BlobRecord]) -> Iterable[Fault]:
    """Yield a fault of every item whose bytes the project does not have, or that is too large for a picture."""
    for item in items:
        blob = blobs.get(item.sha256)
        if blob is None:
            hint = "upload it, and complete the upload"
            yield Fault(where=item.name, message=f"there are no bytes with sha256 {item.sha256}", hint=hint)
        elif blob.size_bytes > policy.max_picture_bytes:
            message = f"has {blob.size_bytes} bytes; a picture has at most {policy.max_picture_bytes}"
            yield Fault(where=item.name, message=message, hint="save it smaller; it is trained at about a megapixel")


def _caption_faults(item: DatasetItem) -> Iterable[Fault]:
    if item.caption is not None and not item.caption.strip():
        yield Fault(where=item.name, message="its caption is blank", hint="write one, or leave the caption out")
    yield from text_faults(item.name, item.caption)
