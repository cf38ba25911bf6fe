"""What ceilings of running jobs mean for the claims: written down a second time on purpose."""

from collections import Counter
from collections.abc import Collection

from tests.contract.model.model_rig import NEVER_TRIED, PROJECTS, ROOT, ModelRig, RowSnapshot

from giornata.control.projects.set_quotas import set_quotas
from giornata.protocol.project.quotas import SetQuotas


def lift_ceilings(rig: ModelRig) -> None:
    """Every project may run what it likes: a job that waits for a place is no job that never ends."""
    for project in PROJECTS:
        set_quotas(rig.ctx, ROOT, project, SetQuotas(max_running_jobs=None))


def full_projects(rig: ModelRig, now: RowSnapshot, *, taken: Collection[str] = ()) -> set[str]:
    """The projects that run as many jobs as they may, when those `taken` run as well."""
    own = [row for row in now.jobs if row.billed_to is None]
    counted = [row.project_id for row in own if row.state == "running" or row.id in taken]
    running = Counter(counted) - Counter(_never_tried(now))
    return {project for project, most in rig.ceilings().items() if running[project] >= most}


def check_ceilings(rig: ModelRig, before: RowSnapshot, seen: RowSnapshot) -> None:
    """No claim hands out a job of a project that then runs more than its ceiling. A node that was given up, and comes
    back to its job, may take the project above it."""
    known, jobs = {row.id for row in before.attempts}, {row.id: row for row in seen.jobs}
    new = [jobs[row.job_id] for row in seen.attempts if row.id not in known and not row.pictures]
    begun = {job.project_id for job in new if job.billed_to is None}
    if not begun:
        return
    own = [row for row in seen.jobs if row.billed_to is None]
    running = Counter(row.project_id for row in own if row.state == "running") - Counter(_never_tried(seen))
    for project, most in rig.ceilings().items():
        assert project not in begun or running[project] <= most, f"{project} runs {running[project]} of {most} jobs"


def _never_tried(now: RowSnapshot) -> list[str]:
    return [row.project_id for row in now.jobs if row.state == "running" and row.kind in NEVER_TRIED]
