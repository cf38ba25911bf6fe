"""What a run shall do, and what must not change between two starts of it."""

from pathlib import Path

import pytest

from giornata.client.storage.training_folder import TrainingFolder
from giornata.client.storage.uploads import LocalFile
from giornata.domain.errors import InvalidInput
from giornata.protocol.uploads import DatasetItem
from giornata.standalone.run_request import make_request, spec_faults

FIELDS = {"model": "some/model", "instance_prompt": "a photo of sks dog", "rank": 8}
ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


def folder(*items):
    """Of (sha256, name, caption)."""
    return TrainingFolder(
        files=tuple(LocalFile(path=Path(name), sha256=sha, size_bytes=1) for sha, name, _ in items),
        items=tuple(DatasetItem(sha256=sha, name=name, caption=caption) for sha, name, caption in items),
        notes=(),
    )


PICTURES = folder((ONE, "a.png", None), (TWO, "b.png", "two"))


def request(fields=FIELDS, pictures=PICTURES, classes=None, stored=None, seed=7, folder_name="my dog"):
    return make_request(
        fields,
        pictures,
        classes,
        stored=stored,
        folder_name=folder_name,
        draw_seed=lambda: seed,
        draw_id=lambda: "job_1",
    )


def faults(**changes):
    with pytest.raises(InvalidInput) as refused:
        request(stored=request().record, **changes)
    return {fault.where: str(fault) for fault in refused.value.faults}


def test_the_seed_is_drawn_once_and_kept():
    first = request(seed=7)
    again = request(stored=first.record, seed=8)
    assert (first.record.spec["seed"], again.record.spec["seed"]) == (7, 7)
    assert again.record == first.record
    assert (first.resumed, again.resumed) == (False, True)


def test_results_are_named_after_the_folder_and_keep_the_name_of_the_first_start():
    first = request().record
    assert first.spec["output_name"] == "my dog"
    assert request(stored=first, folder_name="moved").record.spec["output_name"] == "my dog"
    before_the_field = {name: value for name, value in first.spec.items() if name != "output_name"}
    old = first.model_copy(update={"spec": before_the_field})
    assert request(stored=old).record.spec["output_name"] is None
    assert request(fields={**FIELDS, "output_name": "sks"}).record.spec["output_name"] == "sks"
    assert set(faults(fields={**FIELDS, "output_name": "other"})) == {"spec.output_name"}


def test_the_spec_is_whole_and_names_the_pictures_by_their_content():
    spec = request().record.spec
    assert spec["alpha"] == 8.0
    renamed = folder((TWO, "other.png", "two"), (ONE, "names.png", None))
    assert request(pictures=renamed).record.spec == spec
    assert request(pictures=folder((ONE, "a.png", None))).record.spec["dataset"] != spec["dataset"]


def test_the_engine_gets_every_picture_with_its_caption():
    assert [(each.sha256, each.caption, each.path.is_absolute()) for each in request().inputs] == [
        (ONE, None, True),
        (TWO, "two", True),
    ]


def test_changed_spec_of_stored_run_is_refused_with_every_differing_field():
    said = faults(fields={**FIELDS, "rank": 4, "learning_rate": 0.5})
    assert set(said) == {"spec.rank", "spec.alpha", "spec.learning_rate"}
    assert "is 4; the run that is stored there has 8" in said["spec.rank"]
    assert "another --checkpoint-to" in said["spec.rank"]


def test_changed_seed_of_stored_run_is_refused():
    assert set(faults(fields={**FIELDS, "seed": 9})) == {"spec.seed"}


def test_changed_pictures_of_stored_run_are_refused_by_name():
    said = faults(pictures=folder((ONE, "a.png", "now captioned"), (THREE, "c.png", None)))
    assert set(said) == {"a.png", "b.png", "c.png", "DIR"}
    assert "another caption" in said["a.png"] and "was there" in said["b.png"] and "is new" in said["c.png"]


def test_a_field_that_an_older_version_did_not_know_is_as_by_default():
    record = request().record
    older = record.model_copy(update={"spec": {k: v for k, v in record.spec.items() if k != "use_ema"}})
    assert request(stored=older).record.spec["use_ema"] is False


def test_all_faults_of_a_spec_come_at_once():
    said = {fault.where for fault in spec_faults({"rnak": 4, "rank": 0, "dataset": "ds_1", "class_dataset": "ds_2"})}
    assert said == {
        "spec.rnak",
        "spec.rank",
        "spec.pretrained_model_name_or_path",
        "spec.dataset",
        "spec.class_dataset",
    }
    assert spec_faults(FIELDS) == []


def test_a_secret_of_a_project_is_refused():
    (fault,) = spec_faults(FIELDS | {"hub_token_secret": "HUB"})
    assert fault.where == "spec.hub_token_secret"
    assert "log in" in fault.hint


def test_the_key_of_a_tracker_comes_from_the_machine():
    (fault,) = spec_faults(FIELDS | {"report_to": ["wandb"], "wandb_api_key_secret": "WANDB"})
    assert fault.where == "spec.wandb_api_key_secret"
    assert "WANDB_API_KEY" in fault.hint


def test_sample_images_by_a_fleet_are_refused():
    drawn = {"sample_prompts": ["a dog"], "validation_steps": 5, "max_train_steps": 10}
    (fault,) = spec_faults(FIELDS | drawn | {"validation_by": "fleet"})
    assert (fault.where, fault.message) == ("spec.validation_by", "there is no fleet here")


def test_epochs_are_turned_into_steps_before_the_engine_sees_them():
    items = tuple(item.model_copy(update={"repeats": 3}) for item in PICTURES.items)
    six = TrainingFolder(files=PICTURES.files, items=items, notes=())
    fields = FIELDS | {"num_train_epochs": 5, "train_batch_size": 4}
    first = request(fields, pictures=six)
    assert (first.spec.max_train_steps, first.spec.num_train_epochs) == (10, None)
    assert request(fields, pictures=six, stored=first.record).record == first.record
    assert set(faults(fields={**FIELDS, "num_train_epochs": 5})) == {"spec.max_train_steps"}


def test_epochs_that_are_too_few_for_the_warm_up_are_refused_at_once():
    with pytest.raises(InvalidInput) as refused:
        request(FIELDS | {"num_train_epochs": 1, "lr_warmup_steps": 50, "lr_scheduler": "cosine"})
    assert "spec.num_train_epochs" in {fault.where for fault in refused.value.faults}


def test_repeats_reach_the_engine_and_stay_as_they_were():
    items = tuple(item.model_copy(update={"repeats": 3}) for item in PICTURES.items)
    repeated = TrainingFolder(files=PICTURES.files, items=items, notes=())
    assert [each.repeats for each in request(pictures=repeated).inputs] == [3, 3]
    assert [each.repeats for each in request().inputs] == [1, 1]
    said = faults(pictures=repeated)
    assert "a.png" in said and "other repeats; they were 1" in said["a.png"]


def test_own_class_pictures_are_part_of_the_run_and_stay_as_they_were():
    prior = FIELDS | {"with_prior_preservation": True, "class_prompt": "a dog"}
    classes = folder((THREE, "dog.png", None))
    first = request(prior, classes=classes)
    assert [each.role for each in first.inputs] == ["instance", "instance", "class"]
    assert first.spec.class_dataset not in (None, first.spec.dataset)
    assert first.record.data_sha256 != request().record.data_sha256
    assert request(prior, classes=classes, stored=first.record).record == first.record
    with pytest.raises(InvalidInput) as refused:
        request(prior, classes=folder((ONE, "cat.png", None)), stored=first.record)
    wrong = ["--class-data-dir cat.png", "--class-data-dir dog.png", "--class-data-dir"]
    assert [fault.where for fault in refused.value.faults] == wrong
    with pytest.raises(InvalidInput) as refused:
        request(prior, stored=first.record)
    assert [fault.where for fault in refused.value.faults] == wrong[1:]
    assert spec_faults(prior, own_classes=True) == []
    assert spec_faults(FIELDS | {"class_prompt": "a dog"}, own_classes=True)


def test_a_resolution_of_a_picture_reaches_the_engine_and_needs_buckets():
    items = tuple(item.model_copy(update={"resolution": 512}) for item in PICTURES.items)
    small = TrainingFolder(files=PICTURES.files, items=items, notes=())
    told = request(FIELDS | {"enable_bucket": True, "resolution": 1024}, pictures=small)
    assert [each.resolution for each in told.inputs] == [512, 512]
    with pytest.raises(InvalidInput) as refused:
        request(FIELDS | {"resolution": 1024}, pictures=small)
    assert [fault.where for fault in refused.value.faults] == ["spec.enable_bucket"]
