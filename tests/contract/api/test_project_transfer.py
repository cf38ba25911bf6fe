"""A project is exported from one installation and imported into another one, on each database."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.contract.api.test_continue import SPEC, WEIGHTS, claim
from tests.fixtures.contexts import ManualClock
from tests.fixtures.drawn_orders import DrawingNode, drawn_bytes
from tests.fixtures.model_files import SDXL_LORA, model_file
from tests.fixtures.notifier import KeptRuns
from tests.fixtures.served import Served, a_dataset, serving
from tests.fixtures.users import Bytes
from tests.fixtures.webhooks import webhook, with_webhooks

from giornata.client import Client
from giornata.client.archives.export_project import ExportSummary, export_project
from giornata.client.archives.import_project import import_project
from giornata.client.node import NodeClient
from giornata.control.caller import Caller
from giornata.control.storage.collect import collect
from giornata.domain.errors import Conflict, Forbidden, InvalidInput, OverQuota
from giornata.domain.generation.model_kinds import ModelKind
from giornata.domain.jobs.job import JobState
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job
from giornata.protocol.models import AddModel
from giornata.protocol.node.pictures import PictureId
from giornata.protocol.node.work import (
    CommitArtifact,
    CommitCheckpoint,
    CompleteAttempt,
    Lease,
    LogLines,
    MetricBatch,
    StepMetrics,
)
from giornata.protocol.orders.order_pictures import OrderPicture
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.project_transfer import ImportedPicture, ImportHistory, ImportJob
from giornata.protocol.project.quotas import SetQuotas
from giornata.protocol.uploads import UploadRequest

LORA = Bytes(model_file(SDXL_LORA))
ORDER = {"model": {"name": "some/model"}, "prompts": ["a fox"]}


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[Served]:
    """An installation on the other database, in which other things happened before."""
    other = "sqlite" if request.node.callspec.params["served"] == "postgresql" else "postgresql"
    make: Callable[[], str] = request.getfixturevalue("new_postgres")
    (tmp_path / "elsewhere").mkdir()
    with serving(tmp_path / "elsewhere", database=make() if other == "postgresql" else None) as running:
        client = running.client(running.keys.admin)
        client.delete_job(client.submit({"steps": 5}, kind="x-count").id, cancel=True)
        for _ in range(100):  # no id is one of the other installation's
            running.ctx.names.seed()
        yield running


def sent(served: Served, node: NodeClient, lease: Lease, some: Bytes) -> dict[str, object]:
    (ticket,) = node.request_uploads(lease, UploadRequest(files=(some.file,))).items
    if ticket.put is not None:
        done = served.http.request("PUT", ticket.put.url, headers=ticket.put.headers, content=some.data)
        assert done.is_success
    return {"sha256": some.sha256, "size_bytes": len(some.data), "upload_id": ticket.upload_id}


def a_project(served: Served, folder: Path) -> dict[str, str]:
    """A dataset, a model, a trained job with a continued one, a job in the queue, and an order; their ids."""
    client = served.client(served.keys.admin)
    dataset = a_dataset(client, folder)
    trained = client.submit({**SPEC, "dataset": dataset.id, "output_name": "dog"}, labels={"customer": "42"})
    with httpx.Client(base_url=served.url) as http:
        node = NodeClient(http, node_key=served.keys.node)
        lease = claim(served, node, 1)
        node.metrics(lease, MetricBatch(points=(StepMetrics(step=5, values={"loss": 0.5}),)))
        node.log(lease, LogLines(first=0, lines=("first", "second")))
        node.commit_checkpoint(lease, CommitCheckpoint(step=10, **sent(served, node, lease, WEIGHTS)))
        node.commit_artifact(lease, CommitArtifact(name="dog.safetensors", **sent(served, node, lease, LORA)))
        node.complete(lease, CompleteAttempt(step=10))
    more = client.continue_job(trained.id, {"max_train_steps": 5})
    order = client.submit(ORDER, kind="generate", name=f"after {trained.id}")
    client.cancel(order.id)
    (folder / "style.safetensors").write_bytes(LORA.data)
    (file,) = client.upload_files([folder / "style.safetensors"])
    client.add_model(AddModel(name="style", sha256=file.sha256, kind=ModelKind.LORA))
    client.set_secret("hub", "hf_of_this_house")
    return {"dataset": dataset.id, "trained": trained.id, "more": more.id, "order": order.id}


def exported(client: Client, path: Path) -> ExportSummary:
    with path.open("wb") as file:
        return export_project(client, file)


def test_import_elsewhere_has_all_that_was_exported(served: Served, elsewhere: Served, tmp_path: Path) -> None:
    home, there = served.client(served.keys.admin), elsewhere.client(elsewhere.keys.admin)
    ids = a_project(served, tmp_path)
    archive = tmp_path / "project.tar"
    told = exported(home, archive)
    assert (told.datasets, told.models, told.jobs, told.running) == (1, 1, 3, (ids["more"],))
    done = import_project(there, archive)
    assert set(done.jobs) == {ids["trained"], ids["more"], ids["order"]}
    assert set(done.jobs.values()).isdisjoint(done.jobs)

    assert there.get_dataset(ids["dataset"]).items == home.get_dataset(ids["dataset"]).items
    (model,) = there.models()
    assert (model.name, model.sha256) == ("style", LORA.sha256)
    old, new = home.get_job(ids["trained"]), there.get_job(done.jobs[ids["trained"]])
    assert (new.state, new.step, new.committed_step, new.cost_micro_usd) == (JobState.SUCCEEDED, 10, 10, 0)
    assert (new.spec, new.created_at, new.ended_at) == (old.spec, old.created_at, old.ended_at)
    assert new.labels == {"customer": "42", "imported-from": old.id}
    assert [(each.step, each.sha256) for each in there.checkpoints(new.id)] == [(10, WEIGHTS.sha256)]
    (path,) = there.download(new.id, tmp_path / "results")
    assert (path.name, path.read_bytes()) == ("dog.safetensors", LORA.data)
    assert [(each.step, each.values) for each in there.metrics(new.id)] == [(5, {"loss": 0.5})]
    assert [each.line for each in there.logs(new.id)] == ["first", "second"]
    assert [each.type for each in there.events(new.id, follow=True)][-1] == "job.imported"
    assert there.get_job(done.jobs[ids["order"]]).name == f"after {new.id}"
    assert there.get_job(done.jobs[ids["more"]]).labels["continued-from"] == new.id
    assert not there.secrets()


def a_drawn_order(served: Served) -> Job:
    """An order of four pictures: two drawn, one blocked, one failed. One has a star, and one has tags."""
    client = served.client(served.keys.admin)
    order = client.generate("a fox in snow", model="some/model", num_images_per_prompt=4, name="foxes")
    node = DrawingNode(served=served)
    drawn = node.claim()
    node.draw([each for each in drawn if each["number"] != 3], blocked=[1])
    node.fail(drawn[3], reason="bad_spec", message="it cannot be drawn")
    node.complete()
    first, third = (PictureId(order_id=order.id, number=number) for number in (0, 2))
    client.mark_pictures([first], starred=True)
    client.mark_pictures([third], add_tags=["cover", "winter"])
    assert client.get_job(order.id).state is JobState.SUCCEEDED
    return order


def shown(pictures: Iterable[OrderPicture]) -> list[dict[str, object]]:
    """What a picture is, without what differs between installations."""
    return [each.model_dump(exclude={"request", "filename", "order_id"}) for each in pictures]


def test_pictures_of_an_order_come_in_with_bytes_flags_stars_and_words(
    served: Served, elsewhere: Served, tmp_path: Path
) -> None:
    home, there = served.client(served.keys.admin), elsewhere.client(elsewhere.keys.admin)
    order = a_drawn_order(served)
    exported(home, tmp_path / "project.tar")
    new = import_project(there, tmp_path / "project.tar").jobs[order.id]
    job = there.get_job(new)
    assert (job.state, job.step, job.phase, job.cost_micro_usd) == (JobState.SUCCEEDED, 3, "", 0)
    assert job.result == home.get_job(order.id).result
    assert list(there.artifacts(new)) == []
    assert shown(there.pictures(new)) == shown(home.pictures(order.id))
    assert [each.flags for each in there.pictures(new)] == [(), ("blocked",), (), ()]
    with_files = [each for each in there.pictures(new) if each.request is not None]
    for each in with_files:
        assert each.request is not None
        assert elsewhere.http.get(each.request.url).content == drawn_bytes(each.seed)
    assert len(with_files) == 2
    searches = ({"match": "snow fox"}, {"starred": True}, {"tags": ["cover"]}, {"model": "some/model"}, {})
    for search in searches:
        assert shown(there.find_pictures(**search)) == shown(home.find_pictures(**search)) != []
    assert [list(there.find_pictures(match="cat")), list(there.find_pictures(tags=["none"]))] == [[], []]


def test_imported_order_takes_no_turn(served: Served, elsewhere: Served, tmp_path: Path) -> None:
    there = elsewhere.client(elsewhere.keys.admin)
    order = a_drawn_order(served)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    import_project(there, tmp_path / "project.tar")
    assert DrawingNode(served=elsewhere).claim() == []
    after = there.generate("a cat", model="some/model")
    assert DrawingNode(served=elsewhere).work() == 1
    assert there.get_job(after.id).state is JobState.SUCCEEDED
    assert order.id not in {each.order_id for each in there.find_pictures()}


def test_change_after_an_import_stays_when_the_import_is_repeated(
    served: Served, elsewhere: Served, tmp_path: Path
) -> None:
    there = elsewhere.client(elsewhere.keys.admin)
    order = a_drawn_order(served)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    new = import_project(there, tmp_path / "project.tar").jobs[order.id]
    there.mark_pictures([PictureId(order_id=new, number=0)], starred=False)
    assert there.delete_pictures([PictureId(order_id=new, number=2)]).objects == 1
    events = list(there.events(new))
    import_project(there, tmp_path / "project.tar")
    assert list(there.find_pictures(starred=True)) == []
    assert [each.number for each in there.find_pictures()] == [0]
    assert list(there.events(new)) == events


def test_events_come_in_as_history_and_webhooks_hear_of_the_import_alone(
    served: Served, elsewhere: Served, tmp_path: Path
) -> None:
    home, there = served.client(served.keys.admin), elsewhere.client(elsewhere.keys.admin)
    ids, order = a_project(served, tmp_path), a_drawn_order(served)
    exported(home, tmp_path / "project.tar")
    ctx = with_webhooks(elsewhere.ctx, KeptRuns())
    caller = Caller(project_id="default", scopes=Scope.ADMIN.reach, key_id="key_test")
    hook = webhook(ctx, caller, *(str(each) for each in EventType if each is not EventType.NOTICE))
    new = import_project(there, tmp_path / "project.tar").jobs
    for old in (ids["trained"], ids["more"], order.id):
        *history, last = there.events(new[old], follow=True)
        was = list(home.events(old))
        assert [(each.type, each.at, each.attempt) for each in history] == [
            (each.type, each.at, each.attempt) for each in was
        ]
        assert last.type == "job.imported"
        assert len(was) > 0
    assert [each.data for each in there.events(new[order.id])][:-1] == [each.data for each in home.events(order.id)]
    with ctx.store.read() as tx:
        newest = tx.webhook_deliveries.newest_event()
        heard = tx.webhook_deliveries.events_between(0, newest, project_ids=["default"], limit=1000)
    assert [event.type for _, event in heard if event.job_id in new.values()] == ["job.imported"] * len(new)
    assert hook.id


def test_deleted_import_leaves_no_object(served: Served, elsewhere: Served, tmp_path: Path) -> None:
    there = elsewhere.client(elsewhere.keys.other_admin)
    a_project(served, tmp_path)
    a_drawn_order(served)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    import_project(there, tmp_path / "project.tar")
    keys = [each.key for each in elsewhere.ctx.blobs.list("")]
    assert sum(key.startswith("pictures/other/") for key in keys) == 2
    two_days_on = ManualClock(elsewhere.ctx.clock.now_ms() + 2 * 86_400_000)
    collect(replace(elsewhere.ctx, clock=two_days_on))
    assert sorted(each.key for each in elsewhere.ctx.blobs.list("")) == sorted(keys), "the collector spares them"
    there.delete_project("other", confirm="other", cancel=True)
    assert [each.key for each in elsewhere.ctx.blobs.list("")] == []


def test_pictures_that_an_order_cannot_have_are_refused_with_every_fault(served: Served) -> None:
    client = served.client(served.keys.admin)
    order = client.import_job(an_import(kind="generate", spec={**ORDER, "seed": 7}, history_follows=True))
    wrong = [
        {"number": 0, "state": "failed", "place": 1, "sha256": "0" * 64, "size_bytes": 5},
        {"number": 5, "state": "succeeded", "place": 1, "sha256": "0" * 64},
    ]
    with pytest.raises(InvalidInput) as refused:
        client.import_pictures(order.id, [ImportedPicture.model_validate(each) for each in wrong])
    where = [fault.where for fault in refused.value.faults]
    assert where == ["pictures.0.sha256", "pictures.1.size_bytes", "pictures.1.number", "pictures"]
    event = {"number": 0, "type": "job.imported", "at": "2026-01-01T00:30:00Z"}
    with pytest.raises(InvalidInput, match="is not part of a history"):
        client.import_history(order.id, ImportHistory.model_validate({"events": [event]}))
    with pytest.raises(InvalidInput, match="seed"):
        client.import_job(an_import(kind="generate", spec=ORDER, imported_from="job_other"))
    job = client.submit({"steps": 5}, kind="x-count")
    with pytest.raises(Conflict):
        client.import_pictures(job.id, [ImportedPicture(number=0, state="failed", place=1)])


def test_stored_bytes_of_a_project_bound_the_pictures_of_an_import(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    order = client.import_job(an_import(kind="generate", spec={**ORDER, "seed": 7}, history_follows=True))
    client.set_project_quotas("default", SetQuotas(max_stored_bytes=4))
    picture = ImportedPicture(number=0, state="succeeded", place=1, sha256="0" * 64, size_bytes=5)
    with pytest.raises(OverQuota):
        client.import_pictures(order.id, [picture])


def test_imported_job_is_continued_retried_and_named_as_lora(
    served: Served, elsewhere: Served, tmp_path: Path
) -> None:
    there = elsewhere.client(elsewhere.keys.admin)
    ids = a_project(served, tmp_path)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    new = import_project(there, tmp_path / "project.tar").jobs
    more = there.continue_job(new[ids["trained"]], {"max_train_steps": 7})
    assert (more.spec["init_lora"], "imported-from" in more.labels) == (WEIGHTS.sha256, False)
    again = there.retry(new[ids["more"]])
    assert (again.state, again.spec["init_lora"], again.labels.get("imported-from")) == (
        JobState.QUEUED,
        WEIGHTS.sha256,
        None,
    )
    order = there.generate("a fox", model="some/model", loras=[{"name": new[ids["trained"]]}])
    assert order.state is JobState.QUEUED
    with pytest.raises(InvalidInput, match="was imported"):
        there.provenance(new[ids["trained"]])


def test_import_repeated_makes_nothing_twice(served: Served, elsewhere: Served, tmp_path: Path) -> None:
    there = elsewhere.client(elsewhere.keys.admin)
    a_project(served, tmp_path)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    first = import_project(there, tmp_path / "project.tar")
    jobs = [job.id for job in there.jobs()]
    assert import_project(there, tmp_path / "project.tar") == first
    assert [job.id for job in there.jobs()] == jobs
    (trained,) = [new for old, new in first.jobs.items() if there.get_job(new).state is JobState.SUCCEEDED]
    assert len(list(there.logs(trained))) == 2
    assert [each.type for each in there.events(trained)].count("job.imported") == 1


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Copy an archive; `change` gives the bytes of each member, or None to leave it out."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            assert file is not None
            content = change(member.name, file.read())
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return target


def test_damaged_archive_is_refused_with_every_fault_and_nothing_written(
    served: Served, elsewhere: Served, tmp_path: Path
) -> None:
    there = elsewhere.client(elsewhere.keys.admin)
    ids = a_project(served, tmp_path)
    archive = tmp_path / "project.tar"
    exported(served.client(served.keys.admin), archive)

    def damage(name: str, content: bytes) -> bytes | None:
        if name == f"files/{WEIGHTS.sha256}":
            return b"x" * len(content)
        return None if name in {f"files/{LORA.sha256}", f"history/{ids['trained']}.json"} else content

    with pytest.raises(InvalidInput) as refused:
        import_project(there, rewritten(archive, tmp_path / "damaged.tar", damage))
    where = [fault.where for fault in refused.value.faults]
    assert {f"files/{WEIGHTS.sha256}", f"files/{LORA.sha256}", f"history/{ids['trained']}.json"} <= set(where)
    assert {"models.json", f"jobs/{ids['trained']}.json"} <= set(where), "these name the file that is missing"

    cut = tmp_path / "cut.tar"
    cut.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    without = rewritten(archive, tmp_path / "open.tar", lambda name, it: None if name == "manifest.json" else it)
    newer = rewritten(archive, tmp_path / "newer.tar", newer_format)
    for path, said in ((cut, "cut off"), (without, "cut off"), (newer, "format 2"), (tmp_path / "a.png", "archive")):
        with pytest.raises(InvalidInput, match=said):
            import_project(there, path)
    assert not list(there.jobs())
    assert not list(there.datasets())
    assert not list(there.models())


def newer_format(name: str, content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "format": 2}).encode() if name == "manifest.json" else content


def test_archive_holds_no_secret_and_no_person(served: Served, tmp_path: Path) -> None:
    a_project(served, tmp_path)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    content = (tmp_path / "project.tar").read_bytes()
    assert b"hf_of_this_house" not in content
    assert b'"created_by":"' not in content
    assert b"gk_" not in content


def test_only_an_owner_exports_and_imports_and_only_the_own_project(served: Served, tmp_path: Path) -> None:
    ids = a_project(served, tmp_path)
    exported(served.client(served.keys.admin), tmp_path / "project.tar")
    with pytest.raises(Forbidden):
        exported(served.client(served.keys.member), tmp_path / "member.tar")
    with pytest.raises(Forbidden):
        served.client(served.keys.member).import_job(an_import())
    other = served.client(served.keys.other_admin)
    assert exported(other, tmp_path / "other.tar").jobs == 0
    with pytest.raises(InvalidInput):
        list(other.export_files([WEIGHTS.sha256]))
    before = served.client(served.keys.admin).get_job(ids["trained"])
    moved = import_project(other, tmp_path / "project.tar")
    assert {other.get_job(each).project_id for each in moved.jobs.values()} == {"other"}
    assert served.client(served.keys.admin).get_job(ids["trained"]) == before


def an_import(**fields: object) -> ImportJob:
    job = {"imported_from": "job_far", "kind": "x-count", "state": "succeeded", "spec": {"steps": 5}}
    times = {"created_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T01:00:00Z"}
    return ImportJob.model_validate({**job, **times, **fields})


def test_job_that_cannot_have_been_is_refused_with_every_fault(served: Served) -> None:
    sha256 = "0" * 64
    wrong = an_import(
        kind="train",
        spec={"rank": -1},
        retry_of="job_none",
        ended_at="2025-12-31T00:00:00Z",
        checkpoints=[{"step": 1, "sha256": sha256}, {"step": 1, "sha256": sha256}],
        labels={"bad name": "x"},
    )
    with pytest.raises(InvalidInput) as refused:
        served.client(served.keys.admin).import_job(wrong)
    where = {fault.where for fault in refused.value.faults}
    assert {"spec.rank", "retry_of", "ended_at", "checkpoints", "checkpoints.0", "labels.bad name"} <= where
    canary = an_import(kind="canary")
    with pytest.raises(InvalidInput, match="platform's own kind"):
        served.client(served.keys.admin).import_job(canary)


def test_history_is_taken_for_imported_jobs_only(served: Served) -> None:
    client = served.client(served.keys.admin)
    job = client.submit({"steps": 5}, kind="x-count")
    line = {"number": 0, "attempt": 1, "at": "2026-01-01T00:30:00Z", "line": "made up"}
    with pytest.raises(Conflict):
        client.import_history(job.id, ImportHistory.model_validate({"lines": [line]}))
    imported = client.import_job(an_import())
    client.import_history(imported.id, ImportHistory.model_validate({"lines": [line]}))
    client.import_history(imported.id, ImportHistory.model_validate({"lines": [{**line, "line": "other"}]}))
    assert [each.line for each in client.logs(imported.id)] == ["made up"]
    too_far = {**line, "number": 100_000}
    with pytest.raises(InvalidInput, match="100000 lines"):
        client.import_history(imported.id, ImportHistory.model_validate({"lines": [too_far]}))


def test_import_is_no_way_around_the_adapters_that_a_project_may_use(served: Served, tmp_path: Path) -> None:
    client = served.client(served.keys.admin)
    (tmp_path / "style.safetensors").write_bytes(LORA.data)
    client.upload_files([tmp_path / "style.safetensors"])
    job = an_import(checkpoints=[{"step": 1, "sha256": LORA.sha256}])
    client.set_project_quotas("default", SetQuotas(allowed_adapters=("source:job",)))
    with pytest.raises(OverQuota) as refused:
        client.import_job(job)
    assert [fault.where for fault in refused.value.faults] == ["checkpoints.0"]
    client.set_project_quotas("default", SetQuotas(allowed_adapters=(f"sha256:{LORA.sha256}",)))
    assert client.import_job(job).committed_step == 1
