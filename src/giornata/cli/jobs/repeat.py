"""`giornata verify --repeat`: trains the job of a signed record again on this machine, and compares the bytes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.options.standalone_options import StandaloneOptions
from giornata.cli.options import misplaced
from giornata.cli.settings import Settings
from giornata.cli.standalone import run_alone
from giornata.cli.standalone_input import StandaloneInput, check_input
from giornata.cli.ui.output import EXIT_FAILED, Output
from giornata.client.archives.provenance import file_sha256
from giornata.client.storage.training_folder import TrainingFolder
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.files.datasets import usage_words
from giornata.domain.jobs.job import JobState
from giornata.protocol.provenance import Provenance, canonical_bytes

EXIT_OTHER_CONDITIONS = 4
STORAGE = "checkpoints"
WEIGHTS = ".safetensors"
BASE = "pretrained_model_name_or_path"
NOT_HERE = frozenset({"dataset", "class_dataset", "hub_token_secret", "wandb_api_key_secret", "validation_by"})
"""Fields of a job on a server that a run on this machine has not, and that no weight depends on."""


class RepeatVerdict(StrEnum):
    """The comparison of a repeated job with its record, in one word."""

    SAME = "same"
    DIFFERENT = "different"
    OTHER_CONDITIONS = "other_conditions"


EXIT_CODES = {
    RepeatVerdict.SAME: 0,
    RepeatVerdict.DIFFERENT: EXIT_FAILED,
    RepeatVerdict.OTHER_CONDITIONS: EXIT_OTHER_CONDITIONS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOptions:
    """The options of `giornata verify` that mean something with --repeat alone."""

    spec: Path | None
    directory: Path | None
    class_directory: Path | None
    model: str | None
    output: Path | None

    def misplaced(self) -> list[Fault]:
        """Return a fault for each option that was given without --repeat."""
        options = {
            "--spec": self.spec,
            "--data-dir": self.directory,
            "--class-data-dir": self.class_directory,
            "--model": self.model,
            "--output": self.output,
        }
        return misplaced(options, "means nothing when no job is repeated", hint="add --repeat, or leave it out")

    def missing(self) -> Iterator[Fault]:
        """Yield a fault for each option that a repeat needs."""
        if self.spec is None:
            hint = "save it with: giornata job JOB --json > job.json"
            yield Fault(where="--spec", message="is missing: the record holds the hash of the spec alone", hint=hint)
        if self.directory is None:
            yield Fault(where="--data-dir", message="is missing", hint="name the folder with the job's pictures")
        if self.output is None:
            yield Fault(where="--output", message="is missing", hint="such as: -o again")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatResult:
    """The verdict, the differing conditions as sentences, and the names of files with equal and with other bytes."""

    verdict: RepeatVerdict
    conditions: tuple[str, ...]
    same: tuple[str, ...]
    different: tuple[str, ...]


def repeat_job(found: Provenance, asked: RepeatOptions, settings: Settings, out: Output) -> int:
    """Train the job of a verified record again, compare its files, and return the exit code.

    The code is 0 for equal LoRA files, 1 for other bytes under equal conditions, 4 for other bytes under other
    conditions, and that of the run when it did not end. Raises InvalidInput before anything is computed when the job
    cannot be repeated, or when spec or pictures are not those of the record.
    """
    faults = [*asked.missing(), *_why_never(found), *_class_folder_faults(found, asked)]
    spec: dict[str, Any] = {}
    if asked.spec is not None:
        spec, wrong = _read_spec(asked.spec, found)
        faults += [*wrong, *_spec_faults(spec, asked)]
    if faults or asked.output is None:
        raise InvalidInput(faults)
    options = StandaloneOptions(
        directory=asked.directory,
        class_directory=asked.class_directory,
        checkpoint_to=str(asked.output / STORAGE),
        output=asked.output,
        webhook=None,
    )
    plan = check_input(options, settings, lambda: _fields(spec, asked.model))
    _refuse_other_data(plan, found)
    code, told = run_alone(plan, settings, out)
    if code:
        out.result(told)
        return code
    result = compare(found, told["summary"], asked.output)
    _say(result, out)
    out.result({"verdict": result.verdict, "conditions": result.conditions, "same": result.same, "run": told})
    return EXIT_CODES[result.verdict]


# ---- before


def _why_never(found: Provenance) -> Iterator[Fault]:
    """Yield a fault for each reason why one machine alone cannot make the bytes of this job."""
    where = "provenance"
    if found.state is not JobState.SUCCEEDED:
        yield Fault(where=f"{where}.state", message=f"the job is {found.state}: it has no final bytes to compare")
    prints = [each.get("fingerprint") for each in found.fingerprints]
    if any(isinstance(each, dict) and "joint" in each for each in prints):
        message = "steps were made in a batch shared with other jobs, which rounds otherwise than one job alone"
        hint = "share_batch=false has a job train alone"
        yield Fault(where=f"{where}.fingerprints", message=message, hint=hint)
    elif len(prints) > 1:
        steps = ", ".join(str(each.get("from_step")) for each in found.fingerprints[1:])
        message = f"the conditions changed on the way (at step {steps}): no uninterrupted run has these bytes"
        yield Fault(where=f"{where}.fingerprints", message=message)


def _class_folder_faults(found: Provenance, asked: RepeatOptions) -> Iterator[Fault]:
    if "class_dataset" in found.datasets and asked.class_directory is None:
        hint = "name the folder with the job's class pictures"
        yield Fault(where="--class-data-dir", message="is missing: the job had class pictures of its own", hint=hint)
    if "class_dataset" not in found.datasets and asked.class_directory is not None:
        yield Fault(where="--class-data-dir", message="the job had no class pictures of its own", hint="leave it out")


def _read_spec(file: Path, found: Provenance) -> tuple[dict[str, Any], list[Fault]]:
    """Return the spec of a file with a job, or of one with the spec alone, and what is wrong with it."""
    try:
        told = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read as JSON ({type(error).__name__})"
        return {}, [Fault(where="--spec", message=message, hint="giornata job JOB --json > job.json")]
    spec = told.get("spec", told) if isinstance(told, dict) else None
    if not isinstance(spec, dict):
        return {}, [Fault(where="--spec", message=f"{file} holds no spec", hint="giornata job JOB --json > job.json")]
    if hashlib.sha256(canonical_bytes(spec)).hexdigest() != found.spec_sha256:
        message = f"{file} is not the spec of {found.job_id}: it has another hash than the record"
        return spec, [Fault(where="--spec", message=message, hint=f"giornata job {found.job_id} --json > job.json")]
    return spec, []


def _spec_faults(spec: Mapping[str, Any], asked: RepeatOptions) -> Iterator[Fault]:
    if spec.get("init_lora"):
        message = "the job started from another job's LoRA, which a repeat does not fetch"
        yield Fault(where="spec.init_lora", message=message)
    name = str(spec.get(BASE, ""))
    if asked.model is not None and Path(asked.model).name != Path(name).name:
        message = (
            f"is named {Path(asked.model).name}, and the job's base {Path(name).name}; LoRA files name their base"
        )
        yield Fault(where="--model", message=message, hint=f"put the base into a folder or file {Path(name).name}")


def _fields(spec: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """Return the fields of a run on this machine that makes the same weights, and reports to nobody."""
    fields = {name: value for name, value in spec.items() if name not in NOT_HERE}
    return fields | {"report_to": []} | ({} if model is None else {BASE: sent_name(model)})


def _refuse_other_data(plan: StandaloneInput, found: Provenance) -> None:
    """Raise InvalidInput when the pictures and captions are not those of the record."""
    words = _words("instance", plan.folder, plan.fields.get("instance_prompt"))
    if plan.class_folder is not None:
        words += _words("class", plan.class_folder, plan.fields.get("class_prompt"))
    sha256 = hashlib.sha256(canonical_bytes(sorted(words))).hexdigest()
    if found.data_sha256 not in {None, sha256}:
        message = "pictures or captions are not those of the job: they have another hash than the record"
        hint = "give the very same files and captions"
        raise InvalidInput([Fault(where="--data-dir", message=message, hint=hint)])


def _words(role: str, folder: TrainingFolder, prompt: str | None) -> list[list[str]]:
    """Return what nodes hash of each picture: role, content, caption, and how it is used."""
    return [
        [role, item.sha256, item.caption or prompt or "", *usage_words(item.repeats, item.resolution)]
        for item in folder.items
    ]


# ---- after


def compare(found: Provenance, summary: Mapping[str, Any], directory: Path) -> RepeatResult:
    """Compare the files in a folder with those of the record. The LoRA files decide, whatever else differs."""
    same: list[str] = []
    different: list[str] = []
    for file in found.files:
        path = directory / file.name
        equal = path.is_file() and file_sha256(path) == file.sha256
        (same if equal else different).append(file.name)
    conditions = tuple(_other_conditions(found, summary))
    verdict = RepeatVerdict.SAME
    if any(name.endswith(WEIGHTS) for name in different) or not any(name.endswith(WEIGHTS) for name in same):
        verdict = RepeatVerdict.OTHER_CONDITIONS if conditions else RepeatVerdict.DIFFERENT
    return RepeatResult(verdict=verdict, conditions=conditions, same=tuple(same), different=tuple(different))


def _other_conditions(found: Provenance, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each condition of the job that this run had not."""
    if found.base_sha256 is not None and summary.get("base_sha256") != found.base_sha256:
        yield "the base model has other weights than that of the job"
    if not found.fingerprints:
        yield "the record does not say what device and versions the job had"
        return
    theirs, ours = _fingerprint(found.fingerprints), _fingerprint(summary.get("fingerprints", ()))
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            yield f"{name} was {json.dumps(theirs.get(name))}, and is {json.dumps(ours.get(name))} here"
    if len(summary.get("fingerprints", ())) > 1:
        yield "the conditions changed during the repeat"


def _fingerprint(history: Any) -> Mapping[str, Any]:
    """Return the last conditions of a history."""
    last = history[-1].get("fingerprint") if history else None
    return last if isinstance(last, dict) else {}


SENTENCES = {
    RepeatVerdict.SAME: "same: this machine made the very same LoRA files",
    RepeatVerdict.DIFFERENT: "different: equal conditions, and other bytes: one of the two computed something else",
    RepeatVerdict.OTHER_CONDITIONS: "not comparable: the bytes differ, and so do the conditions",
}


def _say(result: RepeatResult, out: Output) -> None:
    out.say(SENTENCES[result.verdict])
    for name in result.same:
        out.say(f"  same        {name}")
    for name in result.different:
        out.say(f"  different   {name}")
    for sentence in result.conditions:
        out.say(f"  condition   {sentence}")
