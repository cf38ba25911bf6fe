"""What a node has to be capable of before it gets work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeThresholds:
    """What a fleet asks of its nodes. None: it does not matter."""

    min_driver: str | None = None  # of the GPU, such as "550.54"
    min_vram_bytes: int | None = None  # free, not in all
    min_disk_bytes: int | None = None  # free in the work directory
    min_download_bytes_per_s: float | None = None
    min_upload_bytes_per_s: float | None = None
    max_clock_skew_s: float | None = None  # against the server's
