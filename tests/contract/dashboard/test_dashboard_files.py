"""The files that pages load: those of others as they were published, and ours small."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from giornata.control.jobs.reading.job_life import AuditedStretch, JobLife, SilentTime
from giornata.dashboard.job_pages.timeline import TimelineSpan, draw_timeline
from giornata.dashboard.rendering import STATIC, TEMPLATES
from giornata.domain.jobs.audits import AuditState

# Of the npm registry: htmx.org 2.0.11 and uplot 1.6.32 in the package, axe-core 4.14.1 for tests alone.
VENDORED = {
    "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
AXE = {
    "axe.min.js": "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
    "LICENSE": "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
}
MOST_LINES = 600
BEGAN = datetime(2026, 1, 5, 8, tzinfo=UTC)


def hashes(folder: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}


def test_files_of_others_are_as_they_were_published() -> None:
    assert hashes(STATIC / "vendor") == VENDORED
    assert hashes(Path(__file__).parents[2] / "browser" / "axe") == AXE


def test_our_own_scripts_are_short_and_write_no_markup() -> None:
    scripts = sorted(STATIC.glob("*.js"))
    assert scripts
    assert sum(len(each.read_text().splitlines()) for each in scripts) < MOST_LINES
    for each in scripts:
        for unsafe in ("innerHTML =", "outerHTML =", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert unsafe not in each.read_text(), (each.name, unsafe)


def test_no_template_turns_escaping_off() -> None:
    for each in TEMPLATES.rglob("*.html"):
        text = each.read_text()
        assert "| safe" not in text, each.name
        assert "|safe" not in text, each.name
        assert "autoescape" not in text, each.name


def test_a_timeline_places_attempts_in_time_and_gives_each_machine_a_color() -> None:
    hour = timedelta(hours=1)
    spans = [
        TimelineSpan(number=1, machine="a", began_at=BEGAN, ended_at=BEGAN + hour, ending="preempted"),
        TimelineSpan(number=2, machine="b", began_at=BEGAN + 2 * hour, ended_at=BEGAN + 3 * hour, ending=""),
        TimelineSpan(number=3, machine="a", began_at=BEGAN + 3 * hour, ended_at=None, ending=""),
    ]
    drawn = draw_timeline(spans, JobLife(checkpoints=[(100, BEGAN + hour)]), began_at=BEGAN, until=BEGAN + 4 * hour)
    assert [(patch.x, patch.width, patch.color) for patch in drawn.patches] == [
        (0.0, 250.0, 0),
        (500.0, 250.0, 1),
        (750.0, 250.0, 0),
    ]
    assert [(mark.sort, mark.x) for mark in drawn.marks] == [("checkpoint", 250.0)]
    assert drawn.interruptions == 1


def test_a_timeline_of_no_time_and_of_a_clock_set_back_stays_on_the_wall() -> None:
    span = TimelineSpan(number=1, machine="a", began_at=BEGAN + timedelta(days=1), ended_at=BEGAN, ending="")
    drawn = draw_timeline([span], JobLife(), began_at=BEGAN, until=BEGAN)
    (patch,) = drawn.patches
    assert patch.x >= 0
    assert patch.x + patch.width <= 1000


def test_a_timeline_shows_heartbeats_with_gaps_validations_and_audits() -> None:
    hour = timedelta(hours=1)
    spans = [
        TimelineSpan(number=1, machine="a", began_at=BEGAN, ended_at=BEGAN + 2 * hour, ending=""),
        TimelineSpan(number=2, machine="b", began_at=BEGAN + 2 * hour, ended_at=None, ending=""),
    ]
    life = JobLife(
        validations=[("samples-00000100.png", BEGAN + 2 * hour)],
        silent=[
            SilentTime(attempt=1, since=BEGAN + 0.5 * hour, until=BEGAN + hour),
            SilentTime(attempt=2, since=BEGAN + 3 * hour, until=None),
        ],
        audits=[AuditedStretch(from_step=0, to_step=100, state=AuditState.REFUTED, at=BEGAN + 3 * hour)],
    )
    drawn = draw_timeline(spans, life, began_at=BEGAN, until=BEGAN + 4 * hour)
    assert [(each.attempt, each.x, each.width) for each in drawn.beats] == [
        (1, 0.0, 125.0),
        (1, 250.0, 250.0),
        (2, 500.0, 250.0),
    ]
    assert [(each.sort, each.words, each.x) for each in drawn.marks] == [
        ("validation", "Validation samples-00000100.png", 500.0),
        ("audit", "Audit of steps 0 to 100: refuted", 750.0),
    ]
