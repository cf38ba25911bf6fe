"""Requirements of a fleet for its nodes, and the measurements of a node."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from giornata.protocol.model import Count, Message, ObjectSize, Reply, Sha256
from giornata.protocol.node.work import NodeInfo
from giornata.protocol.uploads import Download, SignedUrl


class ProbeUpload(Reply):
    """A PUT of `giornata.domain.files.transfers.probe_bytes(size_bytes)`, to find out how fast the link is."""

    size_bytes: ObjectSize
    sha256: Sha256
    request: SignedUrl


class NodePolicy(Reply):
    """`GET /v1/node/policy`: what the fleet asks of its nodes; a field that is null is not asked for.

    `download` and `upload` are there when the link has to be measured. `at` is the server's clock.
    """

    min_driver: str | None = None
    min_vram_bytes: int | None = None
    min_disk_bytes: int | None = None
    min_download_bytes_per_s: float | None = None
    min_upload_bytes_per_s: float | None = None
    max_clock_skew_s: float | None = None
    download: Download | None = None
    upload: ProbeUpload | None = None
    at: datetime | None = None


class NodeFigures(Message):
    """Measurements of a node. null: not required, or not measurable."""

    driver: str | None = Field(None, max_length=64)
    graphics_trouble: str | None = Field(None, max_length=500)
    free_vram_bytes: Count | None = None
    free_disk_bytes: Count | None = None
    model_store_bytes: Count | None = Field(None, description="Maximum bytes of model files that the node keeps.")
    download_bytes_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    upload_bytes_per_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    clock_ahead_s: float | None = Field(
        None, allow_inf_nan=False, description="The node's clock minus the server's, in seconds."
    )
    clock_within_s: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Bound of the error of clock_ahead_s, in seconds."
    )


class NodeChecks(Message):
    """`POST /v1/node/checks`. Without `shortcomings` the node is fit."""

    node: NodeInfo
    kinds: tuple[str, ...] = Field((), max_length=32)
    figures: NodeFigures = Field(default_factory=NodeFigures)
    shortcomings: tuple[Annotated[str, StringConstraints(max_length=1000)], ...] = Field((), max_length=16)
    leaving: bool = Field(False, description="true: the node ends because of these shortcomings.")


class ChecksNoted(Reply):
    """The server's reply to the checks of a node."""

    drain: bool = Field(False, description="true: the node should give its jobs back and leave.")


class NodeVerdict(Reply):
    """The last that a node said about itself, in `GET /v1/nodes`."""

    at: datetime
    figures: NodeFigures
    shortcomings: tuple[str, ...] = ()
    leaving: bool = False
