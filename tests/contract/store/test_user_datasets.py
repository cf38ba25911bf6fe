"""Datasets."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.contexts import FinePicture, FinePictures, ManualClock
from tests.fixtures.users import ANN, BOB, NODE, PICTURES, ROOT, claim, have, move_in, new_dataset, train

from giornata.control.context import Context
from giornata.control.jobs.submission.submit import submit
from giornata.control.policy import Policy
from giornata.control.projects.projects import set_project_limits
from giornata.control.storage.datasets import create_dataset, get_dataset, list_datasets
from giornata.domain.errors import Fault, Forbidden, InvalidInput, NotFound
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.project.admin import SetLimits
from giornata.protocol.uploads import CreateDataset, DatasetItem


class PickyPictures:
    """Finds fault with bytes that say so, and reads them from the file that it is given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def preview(self, path: Path) -> bytes | None:
        return None

    def inspect(self, files: Sequence[tuple[str, Path]]) -> Sequence[FinePicture]:
        self.seen += [name for name, _ in files]
        return [self._one(name, path.read_bytes()) for name, path in files]

    def _one(self, name: str, data: bytes) -> FinePicture:
        if not data.startswith(b"bad"):
            return FinePicture(name=name, notes=["has a color profile"])
        faults = (Fault(where=name, message="is truncated"), Fault(where=name, message="is too small"))
        return FinePicture(name=name, faults=faults)


@pytest.fixture(autouse=True)
def _home(ctx: Context) -> None:
    move_in(ctx)


def item(ctx: Context, data: bytes, name: str, caption: str | None = None) -> DatasetItem:
    return DatasetItem(sha256=have(ctx, ANN, data), name=name, caption=caption)


def faults_of(ctx: Context, *items: DatasetItem) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        create_dataset(ctx, ANN, CreateDataset(items=items))
    return [(fault.where, fault.message) for fault in caught.value.faults]


def test_the_same_items_are_the_same_dataset_whatever_their_order(ctx: Context, clock: ManualClock) -> None:
    items = tuple(item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES))
    first = create_dataset(ctx, ANN, CreateDataset(items=items, labels={"who": "me"}))
    clock.advance_s(1)
    assert create_dataset(ctx, ANN, CreateDataset(items=items[::-1])) == first
    assert first.id.startswith("ds_")
    assert len(first.id) == 35
    assert (first.picture_count, first.size_bytes) == (4, sum(map(len, PICTURES)))
    assert first.items == items
    assert get_dataset(ctx, ANN, first.id) == first
    captioned = (items[0].model_copy(update={"caption": "sks"}), *items[1:])
    assert create_dataset(ctx, ANN, CreateDataset(items=captioned)).id != first.id


def test_a_picture_at_two_resolutions_reaches_the_node_at_both(ctx: Context) -> None:
    large, *others = new_dataset(ctx).items
    small = large.model_copy(update={"name": "small.png", "resolution": 512})
    dataset = create_dataset(ctx, ANN, CreateDataset(items=(large, small, *others)))
    assert get_dataset(ctx, ANN, dataset.id).items == (large, small, *others)
    with pytest.raises(InvalidInput) as refused:
        submit(ctx, ANN, train(dataset), None)
    assert [fault.where for fault in refused.value.faults] == ["spec.enable_bucket"]
    submit(ctx, ANN, train(dataset, enable_bucket=True), None)
    told = [(given.name, given.resolution) for given in claim(ctx).inputs]
    assert told == [(large.name, None), ("small.png", 512), *((other.name, None) for other in others)]


def test_every_fault_of_every_picture_is_told_at_once_by_its_name(ctx: Context) -> None:
    ctx = replace(ctx, pictures=PickyPictures(), policy=Policy(max_picture_bytes=50))
    good = item(ctx, PICTURES[0], "good.png")
    faults = faults_of(
        ctx,
        good,
        item(ctx, b"bad one", "torn.png"),
        item(ctx, b"x" * 51, "huge.png"),
        DatasetItem(sha256="0" * 64, name="gone.png"),
        DatasetItem(sha256="1" * 64, name="lost.png"),
        item(ctx, PICTURES[1], "blank.png", "  "),
        item(ctx, PICTURES[2], "bell.png", "a \x07 bell"),
        DatasetItem(sha256=good.sha256, name="good.png", caption="two captions"),
        item(ctx, PICTURES[3], "torn.png"),
    )
    assert sorted(where for where, _ in faults) == [
        "bell.png",
        "blank.png",
        "gone.png",
        "good.png",
        "huge.png",
        "lost.png",
        "torn.png",
        "torn.png",
        "torn.png",
    ]
    assert ("torn.png", "is truncated") in faults
    assert ("torn.png", "two different pictures have this name") in faults
    assert list_datasets(ctx, ANN, None, 10).items == ()


def test_d37_counts_are_bounded_and_the_same_picture_twice_counts_once(ctx: Context) -> None:
    twins = [item(ctx, PICTURES[0], f"{number}.png") for number in range(3)]
    strict = replace(ctx, policy=Policy(min_pictures=3))
    assert faults_of(strict, *twins) == [("items", "1 pictures are fewer than 3")]
    many = [item(ctx, data, data.decode()) for data in PICTURES]
    assert faults_of(replace(ctx, policy=Policy(max_pictures=3)), *many) == [("items", "4 pictures are more than 3")]


def test_dataset_of_one_picture_is_accepted_by_a_job(ctx: Context) -> None:
    dataset = create_dataset(ctx, ANN, CreateDataset(items=(item(ctx, PICTURES[0], "one.png"),)))
    assert _submitted(ctx, dataset.id) == dataset.id


def _submitted(ctx: Context, dataset_id: str) -> str:
    """The dataset of a new job."""
    spec = {"model": "a/b", "dataset": dataset_id, "instance_prompt": "a dog", "max_train_steps": 1}
    job, _ = submit(ctx, ANN, SubmitJob(kind="train", spec=spec), None)
    return str(job.spec["dataset"])


def test_an_operator_sets_how_many_pictures_a_project_may_have(ctx: Context) -> None:
    ctx = replace(ctx, policy=Policy(max_pictures=3))
    many = [item(ctx, data, data.decode()) for data in PICTURES]
    assert faults_of(ctx, *many) == [("items", "4 pictures are more than 3")]
    assert set_project_limits(ctx, ROOT, ANN.project_id, SetLimits(max_pictures=4)).max_pictures == 4
    made = create_dataset(ctx, ANN, CreateDataset(items=tuple(many)))
    assert made.picture_count == 4
    assert set_project_limits(ctx, ROOT, ANN.project_id, SetLimits(max_pictures=None)).max_pictures == 3
    assert faults_of(ctx, *many) == [("items", "4 pictures are more than 3")]
    assert _submitted(ctx, made.id) == made.id  # a dataset that exists stays good


def test_project_limits_are_set_only_by_the_operator_and_for_existing_projects(ctx: Context) -> None:
    for caller in (ANN, NODE):
        with pytest.raises(Forbidden):
            set_project_limits(ctx, caller, ANN.project_id, SetLimits(max_pictures=4))
    for nobody in ("nobody", "no\u0000body"):
        with pytest.raises(NotFound):
            set_project_limits(ctx, ROOT, nobody, SetLimits(max_pictures=4))


def test_a_good_picture_is_inspected_once_and_a_bad_one_again(ctx: Context) -> None:
    pictures = PickyPictures()
    ctx = replace(ctx, pictures=pictures)
    good = [item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES)]
    bad = item(ctx, b"bad", "bad.png")
    faults_of(ctx, *good, bad)
    pictures.seen.clear()
    faults_of(ctx, *good, bad)
    assert pictures.seen == ["bad.png"]
    dataset = create_dataset(ctx, ANN, CreateDataset(items=tuple(good)))
    assert pictures.seen == ["bad.png"]
    assert dataset.notes == ("4 of 4 pictures: has a color profile (0.png, 1.png, 2.png, 3.png)",)


def test_dataset_with_duplicate_pictures_has_a_note(ctx: Context) -> None:
    items = [item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES)]
    dataset = create_dataset(ctx, ANN, CreateDataset(items=(*items, item(ctx, PICTURES[0], "copy.png"))))
    assert dataset.notes == ("copy.png: the same picture as 0.png",)
    assert dataset.size_bytes == sum(map(len, PICTURES))


def test_d35_datasets_and_bytes_of_another_project_do_not_exist(ctx: Context) -> None:
    dataset = new_dataset(ctx)
    for unknown in (dataset.id, "ds_0", "ds_\x00"):
        with pytest.raises(NotFound, match="there is no dataset"):
            get_dataset(ctx, BOB, unknown)
    assert list_datasets(ctx, BOB, None, 10).items == ()
    with pytest.raises(InvalidInput) as caught:
        create_dataset(ctx, BOB, CreateDataset(items=dataset.items))
    assert len(caught.value.faults) == 4
    assert new_dataset(ctx, BOB).id == dataset.id, "an id says nothing about the project"
    for forbidden in (
        lambda: create_dataset(ctx, NODE, CreateDataset(items=dataset.items)),
        lambda: get_dataset(ctx, NODE, dataset.id),
        lambda: list_datasets(ctx, NODE, None, 10),
    ):
        with pytest.raises(Forbidden):
            forbidden()


def test_d18_and_d34_a_dataset_is_a_manifest_and_lists_walk_all_pages(ctx: Context, clock: ManualClock) -> None:
    made = []
    for number in range(5):
        clock.advance_s(1)
        made.append(new_dataset(ctx, caption=f"caption {number}").id)
    seen, cursor = [], None
    for _ in range(3):
        page = list_datasets(ctx, ANN, cursor, 2)
        seen += [dataset.id for dataset in page.items]
        cursor = page.next
    assert cursor is None
    assert seen == made[::-1]
    wide = tuple(item(ctx, f"wide {number}".encode(), f"{number}.png") for number in range(20))
    assert len(get_dataset(ctx, ANN, create_dataset(ctx, ANN, CreateDataset(items=wide)).id).items) == 20


def test_labels_that_no_filter_could_name_are_refused(ctx: Context) -> None:
    items = tuple(item(ctx, data, data.decode()) for data in PICTURES)
    with pytest.raises(InvalidInput) as caught:
        create_dataset(ctx, ANN, CreateDataset(items=items, labels={'a"b': "1", "ok": "x\x00", "fine": "yes"}))
    assert [fault.where for fault in caught.value.faults] == ['labels.a"b', "labels.ok"]


def test_the_server_is_no_place_for_pictures(ctx: Context) -> None:
    assert isinstance(ctx.pictures, FinePictures)
    new_dataset(ctx)
    assert sorted(ctx.pictures.seen) == [f"{number}.png" for number in range(4)]


def test_repeats_are_kept_and_told_to_the_node(ctx: Context) -> None:
    items = [item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES)]
    once = create_dataset(ctx, ANN, CreateDataset(items=tuple(items)))
    items[1] = items[1].model_copy(update={"repeats": 10})
    made = create_dataset(ctx, ANN, CreateDataset(items=tuple(items)))
    assert made.id != once.id
    assert [each.repeats for each in get_dataset(ctx, ANN, made.id).items] == [1, 10, 1, 1]
    assert [each.repeats for each in get_dataset(ctx, ANN, once.id).items] == [1, 1, 1, 1]
    spec = {"model": "m", "dataset": made.id, "instance_prompt": "sks"}
    submit(ctx, ANN, SubmitJob(kind="train", spec=spec), None)
    assert [each.repeats for each in claim(ctx).inputs] == [1, 10, 1, 1]


def test_a_dataset_without_repeats_has_the_id_that_it_always_had(ctx: Context) -> None:
    items = tuple(item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES))
    rows = sorted([each.sha256, each.name, ""] for each in items)
    canonical = json.dumps(rows, separators=(",", ":")).encode()
    made = create_dataset(ctx, ANN, CreateDataset(items=items))
    assert made.id == "ds_" + hashlib.sha256(canonical).hexdigest()[:32]


def test_a_picture_given_twice_with_different_repeats(ctx: Context) -> None:
    items = [item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES)]
    items.append(items[0].model_copy(update={"repeats": 2}))
    assert faults_of(ctx, *items) == [("0.png", "is given twice with different repeats")]


def test_epochs_hold_a_picture_as_often_as_it_is_repeated(ctx: Context) -> None:
    items = [item(ctx, data, f"{number}.png") for number, data in enumerate(PICTURES)]
    items[1] = items[1].model_copy(update={"repeats": 10})
    made = create_dataset(ctx, ANN, CreateDataset(items=tuple(items)))
    spec = {"model": "m", "dataset": made.id, "instance_prompt": "sks", "num_train_epochs": 2}
    job, _ = submit(ctx, ANN, SubmitJob(kind="train", spec=spec), None)
    assert len(items) == 4
    assert job.total_steps == 26
