"""What a run shall do, checked whole before anything is computed, and held against what the storage holds."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from giornata.client.training_folder import TrainingFolder
from giornata.control.spec_faults import NO_DATASET, in_steps, parse_spec
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pipe import InputFile
from giornata.protocol.specs import TrainSpec
from giornata.standalone.shelf import JobRecord, PictureRecord

LISTED = 10
AS_IT_WAS = "give it as it was, or another --checkpoint-to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A whole spec (its seed is drawn), the pictures, and what the storage will remember of both."""

    record: JobRecord
    inputs: tuple[InputFile, ...]
    resumed: bool

    @property
    def spec(self) -> TrainSpec:
        """The spec as the engine gets it."""
        return TrainSpec.model_validate(self.record.spec)


def spec_faults(fields: Mapping[str, Any]) -> list[Fault]:
    """All that is wrong with the fields of a spec, the dataset left out."""
    if "dataset" in fields:
        yours = Fault(where="spec.dataset", message="is the pictures in DIR here", hint="leave it out")
        return [yours, *spec_faults({name: value for name, value in fields.items() if name != "dataset"})]
    _, faults = parse_spec("train", {**fields, "dataset": NO_DATASET})
    if fields.get("class_dataset") is not None:
        hint = "leave it out: the base model then draws the class pictures once"
        faults.append(Fault(where="spec.class_dataset", message="there is no server that holds it", hint=hint))
    if fields.get("hub_token_secret") is not None:
        hint = "leave it out, and log in to the hub on this machine: hf auth login"
        faults.append(Fault(where="spec.hub_token_secret", message="there is no server that keeps it", hint=hint))
    if fields.get("wandb_api_key_secret") is not None:
        hint = "leave it out, and set WANDB_API_KEY on this machine"
        faults.append(Fault(where="spec.wandb_api_key_secret", message="there is no server that keeps it", hint=hint))
    return faults


def make_order(
    fields: Mapping[str, Any],
    folder: TrainingFolder,
    *,
    standing: JobRecord | None,
    draw_seed: Callable[[], int],
    draw_id: Callable[[], str],
) -> Order:
    """The order for fields without faults. `standing` is what runs at this place already.

    Raises InvalidInput with all that differs between the two: going on would be neither the one nor the other.
    """
    pictures = _pictures(folder)
    data_sha256 = _sha256_of(sorted([each.sha256, each.caption] for each in pictures))
    epoch = sum(each.repeats for each in pictures)
    spec = _whole(fields, data_sha256, standing, draw_seed, epoch=epoch)
    if standing is not None and (faults := [*_other_spec(spec, standing), *_other_data(pictures, standing)]):
        raise InvalidInput(faults)
    record = standing or JobRecord(
        job_id=draw_id(), spec=spec, spec_sha256=_sha256_of(spec), data_sha256=data_sha256, pictures=pictures
    )
    # The spec as it is now: a field that an older version did not know has its default, which changes nothing.
    return Order(
        record=record.model_copy(update={"spec": spec}), inputs=tuple(_inputs(folder)), resumed=standing is not None
    )


def _whole(
    fields: Mapping[str, Any],
    data_sha256: str,
    standing: JobRecord | None,
    draw_seed: Callable[[], int],
    *,
    epoch: int,
) -> dict[str, Any]:
    """Every field, with the seed of the first run, and alpha and the steps of all epochs written down as a server
    does it. `epoch` counts the pictures of one. Raises InvalidInput."""
    spec = in_steps(TrainSpec.model_validate({**fields, "dataset": f"ds_{data_sha256[:26]}"}), pictures=epoch)
    whole = spec.model_dump(mode="json")
    if spec.seed is None:
        drawn = standing.spec.get("seed") if standing is not None else None
        whole["seed"] = drawn if isinstance(drawn, int) else draw_seed()
    whole["alpha"] = float(spec.rank) if spec.alpha is None else spec.alpha
    return whole


def _pictures(folder: TrainingFolder) -> tuple[PictureRecord, ...]:
    """Sorted by content: names and the order of files decide nothing."""
    found = [
        PictureRecord(sha256=item.sha256, name=item.name, caption=item.caption, repeats=item.repeats)
        for item in folder.items
    ]
    return tuple(sorted(found, key=lambda each: (each.sha256, each.caption or "")))


def _inputs(folder: TrainingFolder) -> Iterator[InputFile]:
    for file, item in zip(folder.files, folder.items, strict=True):
        told: dict[str, Any] = {"name": item.name, "caption": item.caption, "repeats": item.repeats}
        yield InputFile(path=file.path.resolve(), sha256=item.sha256, **told)


def _other_spec(spec: Mapping[str, Any], standing: JobRecord) -> Iterator[Fault]:
    unset = TrainSpec.model_construct(pretrained_model_name_or_path="", dataset="").model_dump(mode="json")
    before = unset | standing.spec
    for name, now in spec.items():
        if name != "dataset" and now != before.get(name):
            message = f"is {_word(now)}; the run that is stored there has {_word(before.get(name))}"
            yield Fault(where=f"spec.{name}", message=message, hint=AS_IT_WAS)


def _other_data(pictures: Iterable[PictureRecord], standing: JobRecord) -> Iterator[Fault]:
    now, before = {each.sha256: each for each in pictures}, {each.sha256: each for each in standing.pictures}
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
        yield Fault(where="DIR", message=f"{more}not what the stored run is trained on", hint=hint)


def _word(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sha256_of(value: Any) -> str:
    """Of the one spelling in JSON, as checkpoints hash specs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()
