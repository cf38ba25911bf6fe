"""Turn errors of S3 into errors of the domain."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError, Unavailable

# A HEAD has no body, so its code is the bare status.
NO_SUCH_OBJECT = frozenset({"NoSuchKey", "NoSuchUpload", "NotFound", "404"})
_WRONG_BYTES = frozenset(
    {"BadDigest", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidDigest", "MalformedXML"}
)
_MISCONFIGURED = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "NoSuchBucket",
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "403",
        "301",
    }
)


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Raises domain errors for botocore's: BlobMissing, BlobMismatch, and Unavailable for all else."""
    try:
        yield
    except ClientError as error:
        raise _said(key, error) from error
    except BotoCoreError as error:
        public = f"object storage cannot be reached ({type(error).__name__})"
        raise Unavailable(f"object storage cannot be reached: {error}", public=public) from error


def code_of(error: ClientError) -> str:
    """Return S3's own error code, such as NoSuchKey."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _said(key: str, error: ClientError) -> GiornataError:
    code = code_of(error)
    if code in NO_SUCH_OBJECT:
        return BlobMissing(f"{key} is not in storage ({code})")
    if code in _WRONG_BYTES:
        return BlobMismatch(f"storage refused the bytes of {key}: {error}")
    if code in _MISCONFIGURED:
        return Unavailable(f"storage refused the server ({code}); check bucket, region, endpoint and credentials")
    return Unavailable(f"object storage failed: {error}", public=f"object storage failed ({code})")
