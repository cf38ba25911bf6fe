"""Tell nodes where to get model files."""

from collections.abc import Mapping, Sequence

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.storage.signed_urls import download
from giornata.protocol.uploads import Download


def downloads_of(
    tx: Transaction, ctx: Context, project_id: str, sha256s: Sequence[str], *, order_ids: Sequence[str] = ()
) -> Mapping[str, Download]:
    """Return a signed download for each of these files that the project has, that the operator shares, or that one
    of the orders holds.

    A file that is in none of these places is left out: its model was removed, or storage has lost it.
    """
    wanted = sorted(set(sha256s))
    own = tx.uploads.blobs(project_id, wanted) if wanted else {}
    rest = [sha256 for sha256 in wanted if sha256 not in own]
    shared = tx.models.shared_blobs(rest) if rest else {}
    rest = [sha256 for sha256 in rest if sha256 not in shared]
    held = tx.models.held_blobs(order_ids, rest) if rest and order_ids else {}
    places = [(each.sha256, each.size_bytes, each.key) for each in own.values()]
    places += [(each.sha256, each.size_bytes, each.key) for each in shared.values()]
    places += [(each.sha256, each.size_bytes, each.key) for each in held.values()]
    return {sha256: download(ctx, sha256=sha256, size_bytes=size, key=key) for sha256, size, key in places}
