"""One job: its life, its numbers, its pictures, its files, and what its owner may do with it.

The page itself reads the job. Its parts (pictures, files) are loaded by themselves, so that each stays small.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import Response

from giornata.control.end_of_life.delete_job import delete_job
from giornata.control.jobs.reading import job_outputs
from giornata.control.jobs.reading.job_life import read_life
from giornata.control.jobs.reading.provenance import read_audits, read_provenance
from giornata.control.jobs.reading.read_jobs import get_job
from giornata.control.jobs.reading.read_pretraining import read_pretraining
from giornata.control.jobs.retry import continue_training, retry
from giornata.control.jobs.stop_job import cancel
from giornata.control.projects.set_budget import change_job
from giornata.dashboard.forms import micro_usd_in, number_in, said_of
from giornata.dashboard.job_pages.timeline import Timeline, TimelineSpan, draw_timeline
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import Visit, action, page, part, see
from giornata.dashboard.words import duration, plural
from giornata.domain.errors import Conflict, GiornataError, IllegalTransition, InvalidInput, NotFound
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import INTERRUPTION
from giornata.protocol.jobs import ChangeJob, ContinueJob, Job
from giornata.protocol.project.admin import Scope
from giornata.web.error_status import status_of

ACTIVE = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.PAUSED})
RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
MOST_ATTEMPTS = 50
MOST_RESULTS, MOST_CHECKPOINTS, MOST_AUDITS = 60, 30, 60


def show(visit: Visit) -> Response:
    """Show the page of one job."""
    return _page(visit, get_job(visit.ctx, visit.caller, visit.path("job_id")))


def show_head(visit: Visit) -> Response:
    """Show the state, the progress and the cost of a job, which the page loads again while the job lives."""
    job = get_job(visit.ctx, visit.caller, visit.path("job_id"))
    return render(visit, "job_head.html", **_head(visit, job))


def show_timeline(visit: Visit) -> Response:
    """Show the life of a job by machine, which the page loads by itself."""
    job = get_job(visit.ctx, visit.caller, visit.path("job_id"))
    return render(visit, "job_timeline.html", timeline=_timeline(visit, job))


def show_files(visit: Visit) -> Response:
    """Show checkpoints and results with links to fetch them, which the page loads by itself."""
    return render(visit, "job_files.html", **_files(visit))


def show_all_files(visit: Visit) -> Response:
    """Show checkpoints and results on a page of their own, from a step and a name on."""
    below = number_in(visit.query("below_step") or "")
    return render(visit, "all_files.html", **_files(visit, after=visit.query("after") or "", below_step=below))


def _files(visit: Visit, *, after: str = "", below_step: int | None = None) -> dict[str, Any]:
    job_id, kind = visit.path("job_id"), visit.query("kind")
    checkpoints = job_outputs.read_checkpoints(
        visit.ctx, visit.caller, job_id, below_step=below_step, limit=MOST_CHECKPOINTS
    )
    artifacts = job_outputs.read_artifacts(visit.ctx, visit.caller, job_id, after=after, limit=MOST_RESULTS)
    here = f"/jobs/{job_id}/files/all"
    step = None if below_step is None else str(below_step)
    more = {"kind": kind, "after": after or None, "below_step": step}
    return {
        "checkpoints": checkpoints.items,
        "artifacts": artifacts.items,
        "job_id": job_id,
        "is_train": kind == "train",
        "next_results": visit.url(here, **{**more, "after": artifacts.next}) if artifacts.next else "",
        "next_checkpoints": visit.url(here, **{**more, "below_step": checkpoints.next}) if checkpoints.next else "",
        "first_results": visit.url(here, **{**more, "after": None}) if after else "",
        "first_checkpoints": visit.url(here, **{**more, "below_step": None}) if step else "",
    }


def show_audits(visit: Visit) -> Response:
    """Show the replay audits of a training job, which the page loads by itself."""
    job_id = visit.path("job_id")
    found = read_audits(visit.ctx, visit.caller, job_id, latest=MOST_AUDITS + 1)
    audits, is_cut = found[-MOST_AUDITS:], len(found) > MOST_AUDITS
    return render(visit, "job_audits.html", audits=audits, is_cut=is_cut, job_id=job_id)


def show_pretraining(visit: Visit) -> Response:
    """Show how a pre-training run goes on, which the page loads by itself."""
    found = read_pretraining(visit.ctx, visit.caller, visit.path("job_id"))
    return render(visit, "job_pretraining.html", found=found)


def send_provenance(visit: Visit) -> Response:
    """Send the signed record of a training job as a file, which `giornata verify` takes."""
    job_id = visit.path("job_id")
    content = read_provenance(visit.ctx, visit.caller, job_id).model_dump_json(indent=2)
    headers = {"Content-Disposition": f'attachment; filename="provenance-{job_id}.json"'}
    return Response(f"{content}\n", media_type="application/json", headers=headers)


def cancel_job(visit: Visit) -> Response:
    """Cancel the job of the page."""
    return _done(visit, lambda job_id: cancel(visit.ctx, visit.caller, job_id), "canceled")


def retry_job(visit: Visit) -> Response:
    """Try the job of the page again."""
    return _done(visit, lambda job_id: retry(visit.ctx, visit.caller, job_id), "retried")


def remove_job(visit: Visit) -> Response:
    """Delete the job of the page, which has ended, with its results and checkpoints."""
    job_id = visit.path("job_id")
    try:
        delete_job(visit.ctx, visit.caller, job_id)
    except (Conflict, IllegalTransition) as error:
        return _refused(visit, error.public, status_of(error))
    return see(visit.url("/jobs", said="deleted"))


def set_budget(visit: Visit) -> Response:
    """Set the job's budget, or lift it by an empty field."""
    given = visit.form.get("budget")
    try:
        asked = ChangeJob(budget_micro_usd=micro_usd_in(given) if given else None)
    except ValueError:
        faults = {"budget": "Type an amount in dollars above 0, such as 2.50, or leave the field empty."}
        return _page(visit, get_job(visit.ctx, visit.caller, visit.path("job_id")), faults=faults)
    return _done(visit, lambda job_id: change_job(visit.ctx, visit.caller, job_id, asked), "saved")


def continue_job(visit: Visit) -> Response:
    """Train on from the weights of a job that has ended, for so many steps."""
    steps = number_in(visit.form.get("steps"))
    if steps is None:
        return _refused(visit, "", 400, faults={"steps": "Type a number of steps, such as 500."})
    asked = ContinueJob(spec={"max_train_steps": steps})

    def verb(job_id: str) -> Job:
        return continue_training(visit.ctx, visit.caller, job_id, asked, None)[0]

    return _done(visit, verb, "saved", fields={"spec.max_train_steps": "steps"})


def story(job: Job) -> str:
    """Return what became of the machines that the job lost; empty where there were none."""
    if not job.interruptions:
        return ""
    machines = {each.machine_id for each in job.attempts if each.reason is not None and INTERRUPTION[each.reason]}
    lost = plural(max(1, len(machines)), "machine")
    often = "" if job.interruptions <= len(machines) else f" ({plural(job.interruptions, 'interruption')})"
    if job.lost_s < 1:
        return f"{lost} lost{often}, nothing lost."
    return f"{lost} lost{often}, {duration(job.lost_s)} of work done again, no step missing."


def _done(
    visit: Visit, verb: Callable[[str], Job], said: str, *, fields: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """Call the verb, and show the page of the job that it returns. `fields` are of the form, by where a fault is."""
    try:
        job = verb(visit.path("job_id"))
    except NotFound:
        raise
    except InvalidInput as error:
        faults = {fields[each.where]: said_of(each) for each in error.faults if each.where in fields}
        others = "; ".join(f"{each.where}: {each.message}" for each in error.faults if each.where not in fields)
        return _refused(visit, others, 400, faults=faults)
    except GiornataError as error:
        return _refused(visit, error.public, status_of(error))
    visit.request.app.state.wakeup.notify()
    return see(visit.url(f"/jobs/{job.id}", said=said))


def _refused(visit: Visit, sentence: str, status: int, *, faults: dict[str, str] | None = None) -> Response:
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}:
        raise NotFound("there is no such page")
    job = get_job(visit.ctx, visit.caller, visit.path("job_id"))
    refusal = f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""
    return _page(visit, job, refusal=refusal, faults=faults, status=status)


def _page(
    visit: Visit, job: Job, *, refusal: str = "", faults: dict[str, str] | None = None, status: int = HTTPStatus.OK
) -> Response:
    may = _may_write(visit, job)
    return render(
        visit,
        "job.html",
        status=HTTPStatus.BAD_REQUEST if faults else status,
        **_head(visit, job),
        spec="\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in job.spec.items()),
        result=json.dumps(job.result, indent=2, ensure_ascii=False) if job.result else "",
        attempts=job.attempts[-MOST_ATTEMPTS:],
        origin=_origin(visit, job),
        may_continue=may and job.kind == "train" and job.state not in ACTIVE,
        may_write=may,
        refusal=refusal,
        faults=faults or {},
        typed=visit.form.typed(),
    )


def _origin(visit: Visit, job: Job) -> tuple[str, int] | None:
    """Return the job and the step with whose weights this one began."""
    begun = job.spec.get("init_lora")
    if not isinstance(begun, str) or SHA256.fullmatch(begun) is None:
        return None
    return job_outputs.read_origin(visit.ctx, visit.caller, begun)


def _head(visit: Visit, job: Job) -> dict[str, Any]:
    """Return what the head of the page shows."""
    may = _may_write(visit, job)
    return {
        "job": job,
        "story": story(job),
        "is_active": job.state in ACTIVE,
        "may_cancel": may and job.state in ACTIVE,
        "may_retry": may and (job.state in RETRYABLE or job.recovering or _is_in_doubt(job)),
        "may_delete": may and job.state not in ACTIVE,
        "is_in_doubt": _is_in_doubt(job),
    }


def _may_write(visit: Visit, job: Job) -> bool:
    return visit.may(Scope.GENERATE if job.kind in ORDER_KINDS else Scope.JOBS_WRITE)


def _is_in_doubt(job: Job) -> bool:
    """True for a job whose result an audit contradicts. Such a job may be trained again though it succeeded."""
    return job.suspect and job.state is JobState.SUCCEEDED


def _timeline(visit: Visit, job: Job) -> Timeline | None:
    if not job.attempts:
        return None
    now = datetime.fromtimestamp(visit.ctx.clock.now_ms() / 1000, tz=UTC)
    spans = [
        TimelineSpan(
            number=each.number,
            machine=each.node_name or each.machine_id,
            began_at=each.started_at,
            ended_at=each.ended_at,
            ending=str(each.reason) if each.reason is not None and INTERRUPTION[each.reason] else "",
        )
        for each in job.attempts[-MOST_ATTEMPTS:]
    ]
    began_at = job.created_at if len(job.attempts) <= MOST_ATTEMPTS else spans[0].began_at
    life = read_life(visit.ctx, visit.caller, job.id)
    return draw_timeline(spans, life, began_at=began_at, until=job.ended_at or now)


_JOB = "/projects/{project_id}/jobs/{job_id}"
ROUTES = (
    page(_JOB, show),
    page(f"{_JOB}/head", show_head),
    part(f"{_JOB}/timeline", show_timeline),
    part(f"{_JOB}/files", show_files),
    page(f"{_JOB}/files/all", show_all_files),
    part(f"{_JOB}/audits", show_audits),
    part(f"{_JOB}/pretraining", show_pretraining),
    page(f"{_JOB}/provenance", send_provenance),
    action(f"{_JOB}/delete", remove_job),
    action(f"{_JOB}/cancel", cancel_job),
    action(f"{_JOB}/retry", retry_job),
    action(f"{_JOB}/budget", set_budget),
    action(f"{_JOB}/continue", continue_job),
)
