"""Open the object storage that a URL names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.ports.blobs import Blobs
from giornata.control.ports.clock import Clock
from giornata.domain.errors import Fault, InvalidInput, install_hint

if TYPE_CHECKING:
    from giornata.blobs.s3 import S3Credentials

_S3_OPTIONS = ("endpoint", "region", "path_style", "verifies_checksums")
_SWITCH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def open_blobs(
    url: str,
    *,
    signing_key: bytes,
    base_url: str | Callable[[], str],
    clock: Clock,
    s3_credentials: "S3Credentials | None" = None,
) -> Blobs:
    """Open storage at `file:///dir` or at
    `s3://bucket/prefix?endpoint=…&region=…&path_style=…&verifies_checksums=…`.

    `signing_key` (at least 32 bytes) and `base_url` (where the API is reached) are for folders, whose URLs the API
    serves: what comes back is then `ServesBlobs` too. `path_style` defaults to true with an endpoint and to false
    without; `verifies_checksums` to true without an endpoint, since AWS does. Raises InvalidInput.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        root = _folder(parts)
        return FilesystemBlobs(root, signing_key=signing_key, base_url=base_url, clock=clock)
    if parts.scheme == "s3":
        return _open_s3(parts, s3_credentials, clock)
    raise _refused(f"scheme {parts.scheme!r} names no storage that is known", "file:///dir or s3://bucket/prefix")


def folder_of(url: str) -> Path | None:
    """Return the folder that a `file:` URL names; None for storage elsewhere. Raises InvalidInput."""
    parts = urlsplit(url)
    return _folder(parts) if parts.scheme == "file" else None


def _folder(parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    if parts.netloc not in {"", "localhost"} or not parts.path or not path.is_absolute():
        raise _refused("a file URL names an absolute folder", "file:///dir, with three slashes")
    if parts.query:
        raise _refused("a file URL has no options", "remove what follows the question mark")
    return path


def _open_s3(parts: SplitResult, credentials: "S3Credentials | None", clock: Clock) -> Blobs:
    try:
        from giornata.blobs.s3 import S3Blobs, S3Place, s3_client
    except ModuleNotFoundError as error:
        raise _refused(f"S3 needs {error.name}, which is not installed", install_hint("server", "s3")) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_options(parts, options)
    endpoint = options.get("endpoint")
    place = S3Place(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint_url=endpoint,
        region=options.get("region", "us-east-1"),
        path_style=_switch(options, "path_style", default=endpoint is not None),
        verifies_checksums=_switch(options, "verifies_checksums", default=endpoint is None),
    )
    return S3Blobs(place, s3_client(place, credentials), clock=clock)


def _check_options(parts: SplitResult, options: Mapping[str, str]) -> None:
    """Raises InvalidInput with all faults of the options."""
    faults = [
        Fault(
            where="blobs", message=f"{name!r} is not an option of an S3 URL", hint=f"known: {', '.join(_S3_OPTIONS)}"
        )
        for name in options
        if name not in _S3_OPTIONS
    ]
    if not parts.netloc or "@" in parts.netloc:
        faults.append(Fault(where="blobs", message="an S3 URL names a bucket and no keys", hint="s3://bucket/prefix"))
    endpoint = options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        faults.append(Fault(where="blobs", message="endpoint is not a URL", hint="endpoint=https://host"))
    for name in ("path_style", "verifies_checksums"):
        if options.get(name, "true") not in _SWITCH:
            faults.append(Fault(where="blobs", message=f"{name} is neither true nor false", hint=f"{name}=true"))
    if faults:
        raise InvalidInput(faults)


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _SWITCH[options[name]] if name in options else default


def _refused(message: str, hint: str) -> InvalidInput:
    return InvalidInput([Fault(where="blobs", message=message, hint=hint)])
