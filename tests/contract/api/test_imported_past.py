"""What an import keeps of where a project was: sweeps, attempts and money, and the policy for unsafe pictures.

Also imports that break off: a process that is killed, and a connection that is lost.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.contract.api.test_continue import SPEC
from tests.contract.api.test_project_transfer import (
    ORDER,
    a_drawn_order,
    a_project,
    an_import,
    exported,
    shown,
)
from tests.fixtures.chaos_proxy import ChaosProxy, Trap, chaos_proxy
from tests.fixtures.served import Served, a_dataset
from tests.fixtures.users import Bytes

from giornata.client import Client
from giornata.client.archives.import_project import ImportSummary, import_project
from giornata.client.node import NodeClient
from giornata.client.retry import Backoff
from giornata.domain.errors import GiornataError, InvalidInput
from giornata.domain.generation.picture import SafetyPolicy
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Claim, CompleteAttempt, FailAttempt, NodeInfo
from giornata.protocol.project.project_transfer import ImportedAttempt, ImportedPicture, ImportHistory
from giornata.protocol.sweeps import Sweep

PRICE = 100_000_000  # a millisecond costs 28 micro-dollars


def tried(node: NodeClient, number: int, *, succeeds: bool) -> None:
    """A dear node claims a training job, and ends it."""
    machine = {"machine_id": f"m-{number}", "name": f"n-{number}", "price_micro_usd_per_hour": PRICE}
    info = NodeInfo(node_id=f"node_{number:08}", **machine)
    lease = node.claim(Claim(request_id=f"request-{number}", node=info, kinds=("train",))).lease
    assert lease is not None
    if succeeds:
        node.complete(lease, CompleteAttempt(step=10))
    else:
        node.fail(lease, FailAttempt(reason=Reason.NODE_VRAM, message="out of memory"))


def a_sweep(served: Served, folder: Path) -> Sweep:
    """A sweep of two jobs. One was tried on two machines and succeeded, the other one waits."""
    client = served.client(served.keys.admin)
    spec = {**SPEC, "dataset": a_dataset(client, folder).id}
    sweep = client.submit_sweep(spec, grid={"rank": [4, 8]}, name="ranks")
    with httpx.Client(base_url=served.url) as http:
        node = NodeClient(http, node_key=served.keys.node)
        tried(node, 1, succeeds=False)
        tried(node, 2, succeeds=True)
    return client.get_sweep(sweep.job.id)


def test_sweep_and_attempts_come_in_with_their_money_and_no_bill_here(served: Served, tmp_path: Path) -> None:
    home, there = served.client(served.keys.admin), served.client(served.keys.other_admin)
    sweep = a_sweep(served, tmp_path)
    (done, waits) = sorted(sweep.jobs, key=lambda each: each.state is not JobState.SUCCEEDED)
    was = home.get_job(done.job_id)
    assert [each.reason for each in was.attempts] == [Reason.NODE_VRAM, Reason.SUCCEEDED]
    assert was.cost_micro_usd > 0
    exported(home, tmp_path / "project.tar")
    summary = import_project(there, tmp_path / "project.tar")
    new = summary.jobs
    assert set(new) == {sweep.job.id, done.job_id, waits.job_id}
    got = there.get_sweep(new[sweep.job.id])
    assert (got.job.name, got.job.state, got.differs) == ("ranks", JobState.CANCELED, sweep.differs)
    assert [(each.job_id, each.changes, each.name) for each in got.jobs] == [
        (new[each.job_id], each.changes, each.name) for each in sweep.jobs
    ]
    assert (got.job.cost_micro_usd, got.job.imported_cost_micro_usd) == (0, was.cost_micro_usd)
    job = there.get_job(new[done.job_id])
    assert (job.parent_id, job.cost_micro_usd, job.imported_cost_micro_usd) == (got.job.id, 0, was.cost_micro_usd)
    assert (job.interruptions, job.useful_s, job.lost_s) == (was.interruptions, was.useful_s, was.lost_s)
    kept = ("number", "started_at", "ended_at", "reason", "blame", "message", "last_step", "billed_s")
    for name in (*kept, "cost_micro_usd"):
        assert [getattr(each, name) for each in job.attempts] == [getattr(each, name) for each in was.attempts], name
    assert len({each.machine_id for each in job.attempts}) == 2
    (listed,) = (each for each in there.jobs() if each.id == job.id)
    assert (listed.interruptions, listed.imported_cost_micro_usd) == (job.interruptions, was.cost_micro_usd)
    assert there.costs().work.cost_micro_usd == 0
    again = import_project(there, tmp_path / "project.tar")
    assert (again, there.get_job(job.id)) == (summary, job)

    exported(there, tmp_path / "again.tar")
    further = import_project(home, tmp_path / "again.tar").jobs[job.id]
    assert home.get_job(further).imported_cost_micro_usd == was.cost_micro_usd, "money is handed on"
    there.delete_job(got.job.id)
    assert list(there.jobs()) == []


def test_sweep_without_its_jobs_and_attempts_of_an_order_are_refused(served: Served) -> None:
    client = served.client(served.keys.admin)
    own = client.submit({"steps": 5}, kind="x-count")
    member = {"changes": {}, "likely_cost_micro_usd": None}
    for jobs, where in (
        ([], "spec.jobs"),
        ([{**member, "job": "job_nobody"}], "spec.jobs.0.job"),
        ([{**member, "job": own.id}], "spec.jobs.0.job"),
    ):
        with pytest.raises(InvalidInput) as refused:
            client.import_job(an_import(kind="sweep", spec={"spec": {}, "jobs": jobs}))
        assert [fault.where for fault in refused.value.faults] == [where]
    times = dict.fromkeys(("started_at", "ended_at", "lease_expires_at"), "2026-01-01T00:30:00Z")
    names = dict.fromkeys(("id", "node_id", "machine_id", "node_name"), "x")
    attempt = ImportedAttempt.model_validate({"number": 1, **names, **times})
    order = client.import_job(an_import(kind="generate", spec={**ORDER, "seed": 7}, history_follows=True))
    with pytest.raises(InvalidInput, match="an order of pictures has no attempts"):
        client.import_history(order.id, ImportHistory(attempts=(attempt,)))
    job = client.import_job(an_import(imported_from="job_other", history_follows=True))
    late = attempt.model_copy(update={"started_at": attempt.ended_at.replace(year=2027)})
    with pytest.raises(InvalidInput) as refused:
        client.import_history(job.id, ImportHistory(attempts=(late,)))
    where = {fault.where for fault in refused.value.faults}
    assert where == {"attempts.0.ended_at", "attempts.0.started_at"}


@pytest.mark.parametrize("served", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("policy", "drawn_under", "flags", "kept_flags", "has_bytes"),
    [
        ("off", "off", (), (), True),
        ("off", "flag", ("unsafe",), ("unsafe",), True),
        ("flag", "off", (), ("unchecked",), True),
        ("flag", "flag", ("unsafe",), ("unsafe",), True),
        ("flag", "flag", ("unchecked",), ("unchecked",), True),
        ("block", "flag", (), (), True),
        ("block", "block", (), (), True),
        ("block", "flag", ("unsafe",), ("blocked",), False),
        ("block", "off", (), ("blocked", "unchecked"), False),
        ("block", "block", ("unchecked",), ("blocked", "unchecked"), False),
    ],
)
def test_imported_picture_is_under_the_policy_of_its_new_project(
    served: Served,
    policy: str,
    drawn_under: str,
    flags: tuple[str, ...],
    kept_flags: tuple[str, ...],
    has_bytes: bool,
) -> None:
    client, picture = served.client(served.keys.admin), Bytes(b"drawn elsewhere")
    client.set_project_safety("default", SafetyPolicy(policy))
    order = client.import_job(an_import(kind="generate", spec={**ORDER, "seed": 7}, history_follows=True))
    said = {"number": 0, "state": "succeeded", "place": 1, "flags": flags, "safety": drawn_under}
    page = [ImportedPicture.model_validate({**said, "sha256": picture.sha256, "size_bytes": len(picture.data)})]
    reply = client.import_pictures(order.id, page)
    assert (len(reply.uploads), reply.withheld) == ((1, ()) if has_bytes else (0, (0,)))
    for each in reply.uploads:
        served.http.put(each.request.url, headers=each.request.headers, content=picture.data).raise_for_status()
        assert client.import_pictures(order.id, page).uploads == ()
    client.import_history(order.id, ImportHistory(is_last=True))
    (got,) = client.pictures(order.id)
    assert (got.state, got.flags, got.request is not None) == ("succeeded", kept_flags, has_bytes)
    assert any(served.ctx.blobs.list("pictures/")) is has_bytes


def test_archive_tells_the_policy_under_which_its_pictures_were_drawn(served: Served, tmp_path: Path) -> None:
    home, there = served.client(served.keys.admin), served.client(served.keys.other_admin)
    order = a_drawn_order(served)
    home.set_project_safety("other", SafetyPolicy.BLOCK)
    exported(home, tmp_path / "unchecked.tar")
    done = import_project(there, tmp_path / "unchecked.tar")
    assert done.withheld == 2
    pictures = list(there.pictures(done.jobs[order.id]))
    assert [each.flags for each in pictures] == [("blocked", "unchecked"), ("blocked",), ("blocked", "unchecked"), ()]
    assert [each.request for each in pictures] == [None] * 4
    there.delete_job(done.jobs[order.id])
    home.set_project_safety("default", SafetyPolicy.FLAG)
    exported(home, tmp_path / "checked.tar")
    done = import_project(there, tmp_path / "checked.tar")
    assert done.withheld == 0
    assert shown(there.pictures(done.jobs[order.id])) == shown(home.pictures(order.id))


BREAKS = (
    Trap("POST", "/v1/uploads$"),
    Trap("POST", "/v1/datasets$"),
    Trap("POST", "/v1/import/jobs$", skip=1),
    Trap("POST", "/pictures$"),
    Trap("POST", "/history$", skip=5),
)


@pytest.fixture
def archive(served: Served, tmp_path: Path) -> Path:
    """A project with jobs, a sweep and a drawn order, exported."""
    a_project(served, tmp_path)
    a_drawn_order(served)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    return tmp_path / "project.tar"


def is_whole(served: Served, done: ImportSummary) -> None:
    """The other project has each job once, with its pictures and its history, as the first one."""
    home, there = served.client(served.keys.admin), served.client(served.keys.other_admin)
    assert sorted(each.id for each in there.jobs()) == sorted(done.jobs.values())
    for old, new in done.jobs.items():
        was, job = home.get_job(old), there.get_job(new)
        assert (job.phase, len(job.attempts), job.imported_cost_micro_usd) == (
            "",
            len(was.attempts),
            was.cost_micro_usd,
        )
        assert [each.type for each in there.events(new)] == [
            *(each.type for each in home.events(old)),
            "job.imported",
        ]
        assert [each.line for each in there.logs(new)] == [each.line for each in home.logs(old)]
        if job.kind == "generate" and job.state is JobState.SUCCEEDED:
            assert shown(there.pictures(new)) == shown(home.pictures(old))


def begun(archive: Path, proxy: ChaosProxy, key: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    around = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "GIORNATA_URL": proxy.url}
    command = [sys.executable, "-m", "giornata", "project", "import", str(archive)]
    env = {**os.environ, **around, "GIORNATA_API_KEY": key}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("served", ["postgresql"], indirect=True)
def test_import_whose_process_is_killed_goes_on_when_it_is_repeated(
    served: Served, archive: Path, tmp_path: Path
) -> None:
    with chaos_proxy(urlsplit(served.url).port or 0) as proxy:
        for method, path, skip in (("POST", "/v1/import/jobs$", 1), ("POST", "/history$", 5)):
            trap = proxy.set(Trap(method, path, skip=skip, hold_reply=True))
            process = begun(archive, proxy, served.keys.other_admin, tmp_path)
            assert trap.caught.wait(60), path
            process.send_signal(signal.SIGKILL)
            process.wait()
            proxy.clear()
        there = served.client(served.keys.other_admin)
        assert "importing" in {each.phase for each in there.jobs()}
    is_whole(served, import_project(there, archive))


@pytest.mark.parametrize("lost", ["drop", "drop_reply"])
def test_import_whose_connection_is_lost_goes_on_when_it_is_repeated(
    served: Served, archive: Path, lost: str
) -> None:
    backoff = Backoff(retries=1, sleep=lambda _: None)
    with chaos_proxy(urlsplit(served.url).port or 0) as proxy:
        for each in BREAKS:
            proxy.set(Trap(each.method, each.path, skip=each.skip, times=1000, drop_reply=True))
            client = Client(proxy.url, served.keys.other_admin, http=served.http, backoff=backoff)
            with pytest.raises(GiornataError):
                import_project(client, archive)
            proxy.clear()
    is_whole(served, import_project(served.client(served.keys.other_admin), archive))
