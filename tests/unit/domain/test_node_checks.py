"""What makes a node unfit, and, for each, what must not."""

import hashlib
from dataclasses import replace

import pytest

from giornata.domain.files.transfers import (
    MAX_PROBE_BYTES,
    MIN_PROBE_BYTES,
    probe_bytes,
    probe_sha256,
    probe_size,
    probe_timeout_s,
)
from giornata.domain.machines.node_checks import GIB, MIB, NodeMeasured, NodeThresholds, shortcomings

EVERYTHING = NodeThresholds(
    min_driver="550.54",
    min_vram_bytes=22 * GIB,
    min_disk_bytes=50 * GIB,
    min_download_bytes_per_s=5 * MIB,
    min_upload_bytes_per_s=2 * MIB,
    max_clock_skew_s=5.0,
)
SOUND = NodeMeasured(
    driver="550.54.14",
    free_vram_bytes=22 * GIB,
    free_disk_bytes=50 * GIB,
    download_bytes_per_s=5.0 * MIB,
    upload_bytes_per_s=2.0 * MIB,
    clock_ahead_s=5.5,
    clock_within_s=0.5,
)

UNFIT = [
    ({"driver": "535.183.01"}, "the graphics driver is 535.183.01; the fleet asks for 550.54 or newer"),
    ({"driver": None, "graphics_trouble": "nvidia-smi ended with 9"}, "does not answer: nvidia-smi ended with 9"),
    ({"free_vram_bytes": 22 * GIB - 1}, "22.0 GiB of GPU memory are free; the fleet asks for 22.0"),
    ({"free_vram_bytes": None}, "free GPU memory cannot be found out: no GPU was found"),
    ({"free_disk_bytes": 3 * GIB}, "3.0 GiB of disk are free; the fleet asks for 50.0"),
    ({"download_bytes_per_s": 0.5 * MIB}, "download goes at 0.50 MiB/s; the fleet asks for 5.00"),
    ({"upload_bytes_per_s": 1.99 * MIB}, "upload goes at 1.99 MiB/s; the fleet asks for 2.00"),
    ({"clock_ahead_s": 5.6}, "the clock is 5.6 s ahead of the server's; the fleet allows 5"),
    ({"clock_ahead_s": -60.0}, "the clock is 60.0 s behind the server's; the fleet allows 5"),
]


@pytest.mark.parametrize(("found", "said"), UNFIT)
def test_node_shortcoming_is_reported_with_measured_and_wanted_figures(found: dict[str, object], said: str) -> None:
    (only,) = shortcomings(replace(SOUND, **found), EVERYTHING)  # type: ignore[arg-type]
    assert said in only


def test_a_node_exactly_at_every_threshold_is_fit() -> None:
    assert shortcomings(SOUND, EVERYTHING) == ()


@pytest.mark.parametrize("found", [found for found, _ in UNFIT])
def test_node_without_fleet_thresholds_has_no_shortcomings(found: dict[str, object]) -> None:
    assert shortcomings(replace(SOUND, **found), NodeThresholds()) == ()  # type: ignore[arg-type]


def test_all_shortcomings_are_named_at_once() -> None:
    worst = NodeMeasured(driver="1", free_vram_bytes=0, free_disk_bytes=0, download_bytes_per_s=0.0)
    assert len(shortcomings(worst, EVERYTHING)) == 4


def test_a_link_or_clock_that_could_not_be_measured_sends_nobody_away() -> None:
    unknown = replace(SOUND, download_bytes_per_s=None, upload_bytes_per_s=None, clock_ahead_s=None)
    assert shortcomings(unknown, EVERYTHING) == ()


@pytest.mark.parametrize(
    ("have", "fit"),
    [("550.54", True), ("550.54.0", True), ("550.100", True), ("565.5", True), ("550.9", False), ("99.54", False)],
)
def test_versions_are_compared_by_their_numbers(have: str, fit: bool) -> None:
    assert (shortcomings(replace(SOUND, driver=have), EVERYTHING) == ()) is fit


def test_a_slow_answer_does_not_make_a_clock_wrong() -> None:
    slow = replace(SOUND, clock_ahead_s=14.0, clock_within_s=10.0)
    assert shortcomings(slow, EVERYTHING) == ()


def test_probes_are_of_few_sizes_and_bounded() -> None:
    sizes = {probe_size(wanted) for wanted in (1.0, 10e3, 100e3, 1e6, 2e6, 5e6, 1e7, 1e8, 1e12)}
    assert min(sizes) == MIN_PROBE_BYTES
    assert max(sizes) == MAX_PROBE_BYTES
    assert len(sizes) <= 6
    assert all(size & (size - 1) == 0 for size in sizes)
    # A link at the threshold is never cut short.
    assert all(
        probe_timeout_s(probe_size(wanted), wanted) > probe_size(wanted) / wanted for wanted in (1e4, 1e6, 1e9)
    )


def test_a_probe_is_the_same_everywhere() -> None:
    """A server and a node of other versions meet: these bytes must never change."""
    assert probe_bytes(8).hex() == "579b701e900eb41e"
    assert probe_sha256(MIN_PROBE_BYTES) == hashlib.sha256(probe_bytes(MIN_PROBE_BYTES)).hexdigest()
    assert probe_sha256(MIN_PROBE_BYTES).startswith("d9b396bc7add8ecc")
