"""Checks of folders, disks and the storage of objects."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl, urlsplit

import httpx

from giornata.blobs.opening import open_blobs
from giornata.cli.maintenance.doctor.examined import ExaminedInstallation
from giornata.cli.maintenance.doctor.findings import DoctorFinding, Harm, NotChecked
from giornata.cli.ui.text import duration, size
from giornata.control.ports.blobs import Blobs
from giornata.domain.errors import GiornataError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
PROBE, OTHER_PROBE = b"giornata: these bytes", b"giornata: other bytes"
PROBE_KEY = "readiness/doctor"
URL_TTL_S = 60
ERROR_STATUS = 400


def check_disks(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find disks of the installation that are full, or soon are."""
    seen = set()
    for folder in examined.folders():
        if (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        found = os.statvfs(folder)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes >= examined.limits.low_disk_bytes:
            continue
        is_full = free_bytes < examined.limits.full_disk_bytes
        message = f"the disk of {folder} has {size(free_bytes)} left of {size(found.f_blocks * found.f_frsize)}"
        fix = "free some space, or move the objects to a larger disk; a full disk stops every commit"
        yield DoctorFinding(check="disk", harm=Harm.STOPPED if is_full else Harm.DEGRADED, message=message, fix=fix)


def check_folders(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find folders and files of the installation that other users of this machine may read."""
    paths = [*examined.folders(), *examined.data.glob("*.key"), *examined.data.glob("giornata.db*")]
    for path in paths:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            closed = "700" if path.is_dir() else "600"
            message = f"other users of this machine may open {path} (mode {mode:04o}): they may know the keys in it"
            fix = f"chmod {closed} {path}; docs/how-to/operating.md says how to replace the keys"
            yield DoctorFinding(check="folders", harm=Harm.LOSS, message=message, fix=fix)


def check_storage(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find storage that cannot be written, and storage that takes other bytes than a signed URL names."""
    blobs = _s3(examined)
    try:
        blobs.write(PROBE_KEY, [PROBE])
    except GiornataError as error:
        fix = "check bucket, region, credentials and endpoint in the setting blobs"
        yield DoctorFinding(
            check="storage", harm=Harm.STOPPED, message=f"storage cannot be written: {error}", fix=fix
        )
        return
    try:
        if not _takes_other_bytes(blobs, examined):
            return
    finally:
        with suppress(GiornataError):  # the collector takes what is left
            blobs.delete(PROBE_KEY)
    message = "storage takes bytes that do not hash to what the signed URL names"
    if _says_that_it_verifies(examined.blobs):
        fix = "set verifies_checksums=false in the setting blobs: the server then reads every upload back"
        yield DoctorFinding(
            check="storage", harm=Harm.LOSS, message=f"{message}, and the server believes it", fix=fix
        )
        return
    fix = "use storage that checks x-amz-checksum-sha256; until then the server reads every upload back"
    yield DoctorFinding(check="storage", harm=Harm.DEGRADED, message=message, fix=fix)


def check_storage_clock(examined: ExaminedInstallation) -> Iterator[DoctorFinding]:
    """Find S3 storage whose clock is another: it refuses signed URLs after a quarter of an hour."""
    endpoint = dict(parse_qsl(urlsplit(examined.blobs).query)).get("endpoint")
    if endpoint is None:
        raise NotChecked("the storage has no endpoint of its own")
    try:
        reply = examined.http.head(endpoint, timeout=examined.limits.timeout_s)
    except httpx.HTTPError as error:
        raise NotChecked(f"{endpoint} does not answer: {error}") from error
    yield from skew_of(examined, reply, f"the storage {endpoint}")


def skew_of(examined: ExaminedInstallation, reply: httpx.Response, named: str) -> Iterator[DoctorFinding]:
    """Yield a finding when the reply's `Date` is far from this machine's clock."""
    said = reply.headers.get("Date")
    if said is None:
        return
    now = datetime.fromtimestamp(examined.clock.now_ms() / 1000, UTC)
    skew_s = (parsedate_to_datetime(said) - now).total_seconds()
    if abs(skew_s) > examined.limits.skew_s:
        message = f"the clock of {named} is {duration(abs(skew_s))} {'ahead' if skew_s > 0 else 'behind'}"
        fix = "set the clocks of all machines by NTP; leases and signed URLs are judged by them"
        yield DoctorFinding(check="clock", harm=Harm.LOSS, message=message, fix=fix)


def _s3(examined: ExaminedInstallation) -> Blobs:
    if urlsplit(examined.blobs).scheme != "s3":
        raise NotChecked("the server itself checks what is put into its folder")
    return open_blobs(
        examined.blobs,
        signing_key=b"",
        base_url="",
        clock=examined.clock,
        s3_credentials=examined.s3_credentials,
    )


def _takes_other_bytes(blobs: Blobs, examined: ExaminedInstallation) -> bool:
    """Put other bytes of the same size by a URL that names the probe's hash."""
    sha256 = hashlib.sha256(PROBE).hexdigest()
    signed = blobs.sign_put(PROBE_KEY, size_bytes=len(PROBE), sha256=sha256, expires_in_s=URL_TTL_S)
    try:
        reply = examined.http.request(
            signed.method,
            signed.url,
            headers=signed.headers,
            content=OTHER_PROBE,
            timeout=examined.limits.timeout_s,
        )
    except httpx.HTTPError as error:
        raise NotChecked(f"the storage does not take a signed upload: {error}") from error
    return reply.status_code < ERROR_STATUS


def _says_that_it_verifies(url: str) -> bool:
    """Return the option `verifies_checksums` of the URL. By default AWS verifies, and other storage does not."""
    options = dict(parse_qsl(urlsplit(url).query))
    said = options.get("verifies_checksums")
    return "endpoint" not in options if said is None else said in {"true", "1", "yes"}
