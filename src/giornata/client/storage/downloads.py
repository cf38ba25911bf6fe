"""Fetches results, and verifies them."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from giornata.client.storage.transfer import download
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.jobs import Artifact, Checkpoint
from giornata.protocol.orders.order_pictures import OrderPicture
from giornata.protocol.uploads import Download

_FOLDERS = {".": "_", "..": "__"}


def download_artifacts(
    http: httpx.Client,
    artifacts: Iterable[Artifact],
    directory: Path,
    *,
    progress: Callable[[int], None] | None = None,
    apart: str | None = None,
) -> tuple[Path, ...]:
    """Write each artifact into the directory, made if need be, under its own name; one that is called `.` or `..`, as
    some of long ago are, under `_` or `__`.

    A file that is there with the right bytes is left alone. One with other bytes is overwritten; with `apart` it is
    kept, and `apart` goes into the name of the new one. Raises InvalidInput for a name that leads out of the
    directory, and BlobMismatch for bytes that are not what the server promised.
    """
    named = [(_FOLDERS.get(item.name, item.name), item) for item in artifacts]
    require_plain_names(name for name, _ in named)
    return tuple(
        download_file(http, item, _place(item, directory / name, apart), progress=progress) for name, item in named
    )


def require_plain_names(names: Iterable[str]) -> None:
    """Raises InvalidInput for names that lead out of a directory: a server says them, and is not trusted that far."""
    unsafe = [name for name in names if not name or Path(name).name != name]
    if unsafe:
        raise InvalidInput(Fault(where=name, message="is not a plain file name") for name in unsafe)


def download_picture(http: httpx.Client, picture: OrderPicture, directory: Path) -> Path:
    """Fetch one picture under its own name. Raises InvalidInput for a picture without a file, and BlobMismatch."""
    require_plain_names([picture.filename])
    if picture.request is None or picture.sha256 is None or picture.size_bytes is None:
        message = f"picture {picture.number} is {picture.state}, and has no file"
        raise InvalidInput([Fault(where=f"pictures.{picture.number}", message=message)])
    file = Download(sha256=picture.sha256, size_bytes=picture.size_bytes, request=picture.request)
    return download_file(http, file, directory / picture.filename)


def download_file(
    http: httpx.Client,
    item: Artifact | Checkpoint | Download,
    path: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Fetch one object, unless the file is there already with the right bytes. Raises BlobMismatch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _holds(path, item):
        download(http, item.request, path, sha256=item.sha256, size_bytes=item.size_bytes, progress=progress)
    return path


def _place(item: Artifact, path: Path, apart: str | None) -> Path:
    if apart is None or not path.exists() or _holds(path, item):
        return path
    return path.with_name(f"{path.stem}-{apart}{path.suffix}")


def _holds(path: Path, item: Artifact | Checkpoint | Download) -> bool:
    if not path.is_file() or path.stat().st_size != item.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == item.sha256
