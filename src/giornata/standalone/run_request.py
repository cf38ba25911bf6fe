"""The request of a run, checked before anything is computed and compared with what the storage holds."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from giornata.client.storage.training_folder import TrainingFolder
from giornata.control.jobs.submission.spec_faults import NO_DATASET, in_steps, parse_spec
from giornata.control.storage.item_faults import resolution_faults
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.node.pipe import InputFile
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.file_names import output_name_of
from giornata.protocol.training.results import FLEET
from giornata.standalone.storage import PictureRecord, RunRecord

LISTED = 10
AS_IT_WAS = "give it as it was, or another --checkpoint-to"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The whole spec (its seed is drawn), the pictures, and the record of both for the storage."""

    record: RunRecord
    inputs: tuple[InputFile, ...]
    resumed: bool

    @property
    def spec(self) -> TrainSpec:
        """The spec as the engine gets it."""
        return TrainSpec.model_validate(self.record.spec)


def spec_faults(fields: Mapping[str, Any], *, own_classes: bool = False) -> list[Fault]:
    """Return all faults in the fields of a spec, the datasets left out. `own_classes`: there is a folder with class
    pictures."""
    if "dataset" in fields:
        yours = Fault(
            where="spec.dataset", message="cannot be set here: the pictures are those in DIR", hint="leave it out"
        )
        rest = {name: value for name, value in fields.items() if name != "dataset"}
        return [yours, *spec_faults(rest, own_classes=own_classes)]
    own = {"class_dataset": NO_DATASET} if own_classes else {}
    _, faults = parse_spec("train", {**fields, "dataset": NO_DATASET, **own})
    if fields.get("class_dataset") is not None:
        hint = "own class pictures: --class-data-dir DIR; without, the base model draws them once"
        faults.append(Fault(where="spec.class_dataset", message="there is no server that holds it", hint=hint))
    if fields.get("hub_token_secret") is not None:
        hint = "leave it out, and log in to the hub on this machine: hf auth login"
        faults.append(Fault(where="spec.hub_token_secret", message="there is no server that keeps it", hint=hint))
    if fields.get("validation_by") == FLEET:
        hint = "leave it out: this process draws"
        faults.append(Fault(where="spec.validation_by", message="there is no fleet here", hint=hint))
    if fields.get("wandb_api_key_secret") is not None:
        hint = "leave it out, and set WANDB_API_KEY on this machine"
        faults.append(Fault(where="spec.wandb_api_key_secret", message="there is no server that keeps it", hint=hint))
    return faults


def make_request(
    fields: Mapping[str, Any],
    folder: TrainingFolder,
    class_folder: TrainingFolder | None = None,
    *,
    stored: RunRecord | None,
    folder_name: str,
    draw_seed: Callable[[], int],
    draw_id: Callable[[], str],
) -> RunRequest:
    """Make the request for fields without faults. `stored` is the run that is at this place already; its results keep
    their name. Those of a new run are named after the folder, unless the fields have an output_name.

    Raises InvalidInput with all that differs between the two: going on would be neither the one nor the other.
    """
    pictures, classes = _pictures(folder), () if class_folder is None else _pictures(class_folder)
    data_sha256, classes_sha256 = _hash_of(pictures), _hash_of(classes)
    datasets = {"dataset": _dataset_id(data_sha256)}
    datasets |= {"class_dataset": _dataset_id(classes_sha256)} if classes else {}
    spec = _whole(
        {**fields, **datasets}, stored, folder_name, draw_seed, epoch=sum(each.repeats for each in pictures)
    )
    given = (each.resolution for each in (*pictures, *classes))
    if faults := [*resolution_faults(given, enable_bucket=spec["enable_bucket"])]:
        raise InvalidInput(faults)
    if stored is not None and (faults := [*_other_spec(spec, stored), *_other_data(pictures, classes, stored)]):
        raise InvalidInput(faults)
    record = stored or RunRecord(
        job_id=draw_id(),
        spec=spec,
        spec_sha256=_sha256_of(spec),
        data_sha256=_sha256_of([data_sha256, classes_sha256]) if classes else data_sha256,
        pictures=pictures,
        class_pictures=classes,
    )
    inputs = [*_inputs(folder, "instance"), *([] if class_folder is None else _inputs(class_folder, "class"))]
    # The spec as it is now: a field that an older version did not know has its default, which changes nothing.
    return RunRequest(
        record=record.model_copy(update={"spec": spec}), inputs=tuple(inputs), resumed=stored is not None
    )


def _whole(
    fields: Mapping[str, Any],
    stored: RunRecord | None,
    folder_name: str,
    draw_seed: Callable[[], int],
    *,
    epoch: int,
) -> dict[str, Any]:
    """Return every field, with the seed of the first run, and alpha and the steps of all epochs as a server fills
    them in. `epoch` counts the pictures of one. Raises InvalidInput."""
    spec = in_steps(TrainSpec.model_validate(fields), pictures=epoch)
    whole = spec.model_dump(mode="json")
    if spec.seed is None:
        drawn = stored.spec.get("seed") if stored is not None else None
        whole["seed"] = drawn if isinstance(drawn, int) else draw_seed()
    if spec.output_name is None:
        whole["output_name"] = output_name_of(folder_name) if stored is None else stored.spec.get("output_name")
    whole["alpha"] = float(spec.rank) if spec.alpha is None else spec.alpha
    return whole


def _pictures(folder: TrainingFolder) -> tuple[PictureRecord, ...]:
    """Return the pictures sorted by content: names and the order of files decide nothing."""
    found = [PictureRecord(**item.model_dump()) for item in folder.items]
    return tuple(sorted(found, key=lambda each: (each.sha256, each.caption or "", each.resolution or 0)))


def _hash_of(pictures: Iterable[PictureRecord]) -> str:
    return _sha256_of(sorted([each.sha256, each.caption] for each in pictures))


def _dataset_id(sha256: str) -> str:
    return f"ds_{sha256[:26]}"


def _inputs(folder: TrainingFolder, role: Literal["instance", "class"]) -> Iterator[InputFile]:
    for file, item in zip(folder.files, folder.items, strict=True):
        yield InputFile(role=role, path=file.path.resolve(), **item.model_dump())


def _other_spec(spec: Mapping[str, Any], stored: RunRecord) -> Iterator[Fault]:
    unset = TrainSpec.model_construct(pretrained_model_name_or_path="", dataset="").model_dump(mode="json")
    before = unset | stored.spec
    for name, now in spec.items():
        if name not in {"dataset", "class_dataset"} and now != before.get(name):
            message = f"is {_word(now)}; the run that is stored there has {_word(before.get(name))}"
            yield Fault(where=f"spec.{name}", message=message, hint=AS_IT_WAS)


def _other_data(
    pictures: Iterable[PictureRecord], classes: Iterable[PictureRecord], stored: RunRecord
) -> Iterator[Fault]:
    yield from _other_pictures(pictures, stored.pictures, where="DIR")
    for fault in _other_pictures(classes, stored.class_pictures, where=""):
        yield replace(fault, where=f"--class-data-dir {fault.where}".rstrip())


def _by_usage(pictures: Iterable[PictureRecord]) -> dict[tuple[str, int | None], PictureRecord]:
    return {(each.sha256, each.resolution): each for each in pictures}


def _other_pictures(
    pictures: Iterable[PictureRecord], stored: Iterable[PictureRecord], *, where: str
) -> Iterator[Fault]:
    """Yield a fault for each difference in a folder, up to a limit. The last fault is at `where`."""
    now, before = _by_usage(pictures), _by_usage(stored)
    said = [Fault(where=now[sha].name, message="is new since the run began") for sha in now.keys() - before.keys()]
    said += [Fault(where=before[sha].name, message="was there when it began") for sha in before.keys() - now.keys()]
    said += [
        Fault(where=now[sha].name, message=f"has another caption; it was {_word(before[sha].caption)}")
        for sha in now.keys() & before.keys()
        if now[sha].caption != before[sha].caption
    ]
    said += [
        Fault(where=now[sha].name, message=f"has other repeats; they were {before[sha].repeats}")
        for sha in now.keys() & before.keys()
        if now[sha].repeats != before[sha].repeats
    ]
    said.sort(key=str)
    yield from said[:LISTED]
    if said:
        more = f"{len(said) - LISTED} more pictures differ; " if len(said) > LISTED else ""
        hint = "train on the very same pictures and captions, or give another --checkpoint-to"
        yield Fault(where=where, message=f"{more}not what the stored run is trained on", hint=hint)


def _word(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sha256_of(value: Any) -> str:
    """Return the sha256 of the canonical JSON, as checkpoints hash specs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()
