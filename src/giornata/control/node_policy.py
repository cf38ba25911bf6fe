"""What a fleet asks of its nodes, with the means to measure a link to storage."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_node
from giornata.control.signed_urls import download, signed_url
from giornata.control.timestamps import instant
from giornata.domain.errors import BlobMissing
from giornata.domain.node_checks import NodeThresholds
from giornata.domain.transfers import probe_bytes, probe_sha256, probe_size
from giornata.protocol.node_checks import NodePolicy, ProbeUpload
from giornata.protocol.uploads import Download

FOLDER = "probes"


def node_policy(ctx: Context, caller: Caller, fleet: str) -> NodePolicy:
    """The thresholds of the fleet; none for one that the server does not govern, and none for machines of a
    project's own. Raises Forbidden, Unavailable."""
    require_node(caller)
    governed = ctx.fleets.get(fleet) if caller.owns_machines is None else None
    wanted = NodeThresholds() if governed is None else governed.thresholds
    down, up = wanted.min_download_bytes_per_s, wanted.min_upload_bytes_per_s
    return NodePolicy(
        min_driver=wanted.min_driver,
        min_vram_bytes=wanted.min_vram_bytes,
        min_disk_bytes=wanted.min_disk_bytes,
        min_download_bytes_per_s=down,
        min_upload_bytes_per_s=up,
        max_clock_skew_s=wanted.max_clock_skew_s,
        download=None if down is None else _download(ctx, probe_size(down)),
        upload=None if up is None else _upload(ctx, probe_size(up)),
        at=instant(ctx.clock.now_ms()),
    )


def _download(ctx: Context, size_bytes: int) -> Download:
    """A URL of the probe, which is made where there is none. It belongs to no project, so the collector takes it
    away from time to time, as every object without a row."""
    key = f"{FOLDER}/down-{size_bytes}"
    try:
        there = ctx.blobs.size(key) == size_bytes
    except BlobMissing:
        there = False
    if not there:
        ctx.blobs.write(key, [probe_bytes(size_bytes)])
    return download(ctx, sha256=probe_sha256(size_bytes), size_bytes=size_bytes, key=key)


def _upload(ctx: Context, size_bytes: int) -> ProbeUpload:
    """A PUT that all nodes share: they send the same bytes."""
    sha256 = probe_sha256(size_bytes)
    life_s = round(ctx.policy.upload_url_s)
    put = ctx.blobs.sign_put(f"{FOLDER}/up-{size_bytes}", size_bytes=size_bytes, sha256=sha256, expires_in_s=life_s)
    return ProbeUpload(size_bytes=size_bytes, sha256=sha256, request=signed_url(put))
