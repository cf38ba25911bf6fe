"""Requirements that a node must meet before it gets jobs."""

import re
from dataclasses import dataclass

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeThresholds:
    """Requirements of a fleet for its nodes. None means no requirement."""

    min_driver: str | None = None  # of the GPU, such as "550.54"
    min_vram_bytes: int | None = None  # free, not in all
    min_disk_bytes: int | None = None  # free in the work directory
    min_download_bytes_per_s: float | None = None
    min_upload_bytes_per_s: float | None = None
    max_clock_skew_s: float | None = None  # against the server's


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeasured:
    """The measurements that a node took of itself. None: not requested, or not measurable.

    `graphics_trouble` says why the graphics driver does not answer. `clock_ahead_s` is the node's clock minus the
    server's, and may be wrong by `clock_within_s`.
    """

    driver: str | None = None
    graphics_trouble: str | None = None
    free_vram_bytes: int | None = None
    free_disk_bytes: int | None = None
    model_store_bytes: int | None = None  # of model files that it keeps at most
    download_bytes_per_s: float | None = None
    upload_bytes_per_s: float | None = None
    clock_ahead_s: float | None = None
    clock_within_s: float = 0.0


def shortcomings(measured: NodeMeasured, wanted: NodeThresholds) -> tuple[str, ...]:
    """List, in words with figures, the reasons why a node must not work in such a fleet; empty: the node may.

    A link or a clock that could not be measured is no shortcoming: the fault may be the server's, and would send a
    whole fleet away. A graphics driver that does not answer is one, where the fleet asks for a driver or for memory.
    """
    found = (
        _driver(measured, wanted.min_driver),
        _vram(measured, wanted.min_vram_bytes),
        _disk(measured.free_disk_bytes, wanted.min_disk_bytes),
        _link("download", measured.download_bytes_per_s, wanted.min_download_bytes_per_s),
        _link("upload", measured.upload_bytes_per_s, wanted.min_upload_bytes_per_s),
        _clock(measured, wanted.max_clock_skew_s),
    )
    return tuple(each for each in found if each is not None)


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared: 550.54.14 as (550, 54, 14). Empty when it has none."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _driver(measured: NodeMeasured, wanted: str | None) -> str | None:
    if wanted is None:
        return None
    if measured.driver is None:
        return f"the graphics driver does not answer: {measured.graphics_trouble or 'no GPU was found'}"
    if _at_least(measured.driver, wanted):
        return None
    return f"the graphics driver is {measured.driver}; the fleet asks for {wanted} or newer"


def _at_least(version: str, wanted: str) -> bool:
    have, want = version_numbers(version), version_numbers(wanted)
    longest = max(len(have), len(want))
    return (have + (0,) * longest)[:longest] >= (want + (0,) * longest)[:longest]


def _vram(measured: NodeMeasured, wanted: int | None) -> str | None:
    if wanted is None:
        return None
    if measured.free_vram_bytes is None:
        return f"free GPU memory cannot be found out: {measured.graphics_trouble or 'no GPU was found'}"
    if measured.free_vram_bytes >= wanted:
        return None
    return f"{measured.free_vram_bytes / GIB:.1f} GiB of GPU memory are free; the fleet asks for {wanted / GIB:.1f}"


def _disk(free_bytes: int | None, wanted: int | None) -> str | None:
    if wanted is None or free_bytes is None or free_bytes >= wanted:
        return None
    return f"{free_bytes / GIB:.1f} GiB of disk are free; the fleet asks for {wanted / GIB:.1f}"


def _link(direction: str, bytes_per_s: float | None, wanted: float | None) -> str | None:
    if wanted is None or bytes_per_s is None or bytes_per_s >= wanted:
        return None
    return f"{direction} goes at {bytes_per_s / MIB:.2f} MiB/s; the fleet asks for {wanted / MIB:.2f}"


def _clock(measured: NodeMeasured, most_s: float | None) -> str | None:
    ahead_s = measured.clock_ahead_s
    if most_s is None or ahead_s is None or abs(ahead_s) - measured.clock_within_s <= most_s:
        return None
    side = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock is {abs(ahead_s):.1f} s {side} the server's; the fleet allows {most_s:g}"
