"""Sheets of samples of one job: by step, those of a pre-training with their phase, and each as a picture."""

import re
from collections.abc import Sequence

from fastapi import Response

from giornata.control.jobs.reading import job_outputs
from giornata.control.jobs.reading.read_pretraining import read_phases
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, page, part
from giornata.domain.errors import NotFound
from giornata.domain.jobs.pretraining_progress import PhaseProgress, phase_of_step
from giornata.protocol.jobs import Artifact
from giornata.protocol.specs import PRETRAIN_KIND

SHEET = re.compile(r"samples-(\d{8})\.png\Z", re.ASCII)
LAST_SHEET = re.compile(r"(?:\A|-)samples\.png\Z", re.ASCII)
SHOWN_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
MOST_PICTURE_BYTES = 32 * 2**20
MOST_SHEETS = 60
NEWEST_OF = 4
"""Sheets among which the newest is sought; a file that no browser shows may be called as one."""


def show_pictures(visit: Visit) -> Response:
    """Show the sample sheets by step, those of a pre-training with their phase, which the page loads by itself."""
    job_id, is_pretraining = visit.path("job_id"), visit.query("kind") == PRETRAIN_KIND
    phases = read_phases(visit.ctx, visit.caller, job_id) if is_pretraining else ()
    found = job_outputs.read_sheets(visit.ctx, visit.caller, job_id, limit=MOST_SHEETS)
    sheets = _sheets(visit, found.items, phases)
    # No LoRA comes of a pre-training, with which one could go on.
    labels = [] if is_pretraining else [label for label, _ in sheets]
    wanted = [int(label) for label in labels if label != "end"]
    of_sheets = job_outputs.read_checkpoints_at(visit.ctx, visit.caller, job_id, wanted).items if wanted else ()
    steps = {str(each.step) for each in of_sheets}
    drawn = [label for label in labels if label in steps or label == "end"]
    return render(
        visit,
        "job_pictures.html",
        job_id=job_id,
        rows=sheets,
        steps=steps,
        drawn=drawn,
        has_earlier=found.next is not None,
    )


def show_newest(visit: Visit) -> Response:
    """Show the newest sample sheet of a job, for the first page."""
    found = job_outputs.read_sheets(visit.ctx, visit.caller, visit.path("job_id"), limit=NEWEST_OF)
    sheets = _sheets(visit, found.items)
    return render(visit, "job_newest.html", sheet=sheets[-1] if sheets else None)


def send_picture(visit: Visit) -> Response:
    """Send one picture among the results. The policy of the pages lets a browser load it from no other place."""
    name = visit.path("name")
    found = job_outputs.read_artifact(
        visit.ctx, visit.caller, visit.path("job_id"), name, most_bytes=MOST_PICTURE_BYTES
    )
    if found.media_type not in SHOWN_TYPES:
        raise NotFound(f"{name[:64]} is no picture")
    kept = {"Cache-Control": "private, max-age=86400, immutable"}
    return Response(found.content, media_type=found.media_type, headers=kept)


def _sheets(
    visit: Visit, artifacts: Sequence[Artifact], phases: Sequence[PhaseProgress] = ()
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return those of the sheets that a browser shows: by ascending step, that of the finished job last."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for each in sorted(artifacts, key=lambda one: (LAST_SHEET.search(one.name) is not None, one.name)):
        step = SHEET.search(each.name)
        if each.media_type not in SHOWN_TYPES or each.size_bytes > MOST_PICTURE_BYTES:
            continue
        if step is None and LAST_SHEET.search(each.name) is None:
            continue
        label = "end" if step is None else str(int(step.group(1)))
        address = visit.url(f"/jobs/{visit.path('job_id')}/pictures/{each.name}", sha256=each.sha256[:16])
        said = "Samples at the end" if step is None else f"Samples at step {label}"
        phase = None if step is None else phase_of_step(phases, int(label))
        found.append((label, [(address, said if phase is None else f"{said}, phase {phase.name}")]))
    return found


_JOB = "/projects/{project_id}/jobs/{job_id}"
ROUTES = (
    part(f"{_JOB}/pictures", show_pictures),
    page(f"{_JOB}/pictures/{{name}}", send_picture),
    part(f"{_JOB}/newest", show_newest),
)
