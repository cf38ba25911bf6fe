"""The options of `giornata generate`, turned into an order and checked whole, with the files that it starts from."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.options.option_types import (
    CountOption,
    EstimateOption,
    GuidanceOption,
    LoraOption,
    MaxCostOption,
    MinVramOption,
    ModelOption,
    NameOption,
    NegativeOption,
    OutputOption,
    PriorityOption,
    SchedulerOption,
    SeedOption,
    SetOption,
    SizeOption,
    StepsOption,
    WaitOption,
)
from giornata.cli.jobs.options.spec_options import parse_assignments
from giornata.cli.options import check_job_name
from giornata.cli.ui.text import micro_usd, parse_size
from giornata.control.jobs.submission.mask_faults import Sides, mask_fault
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.pictures.inspection import inspect
from giornata.protocol.generation.metadata import PictureReading, picture_params_of
from giornata.protocol.generation.request_fields import SpecFields, spec_fields
from giornata.protocol.generation.specs import GENERATE_KIND, GenerateSpec

FILE_OPTIONS = {"image": "--image", "mask": "--mask"}
"""Fields of the spec, and the option that names a file for each."""
OPTIONS = {
    "prompts": "PROMPT",
    "model": "--model",
    "loras": "--lora",
    "num_images_per_prompt": "--count",
    "width": "--size",
    "height": "--size",
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "scheduler": "--scheduler",
    "seed": "--seed",
    "negative_prompt": "--negative",
    **FILE_OPTIONS,
}
"""Fields of the spec, and the option that sets each."""
FROM_IMAGE = "--from-image"
MOST_IMAGE_BYTES = 100 * 2**20
SIZE = re.compile(r"([0-9]{1,5})[x×]([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOptions:
    """The options of `generate` and `grid` that say how pictures are drawn, as they were typed."""

    model: ModelOption[str | None] = None
    loras: LoraOption = None
    count: CountOption = None
    size: SizeOption = None
    steps: StepsOption = None
    guidance: GuidanceOption = None
    scheduler: SchedulerOption = None
    seed: SeedOption = None
    negative: NegativeOption = None
    assignments: SetOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions(DrawnOptions):
    """The options of the command that say what is drawn, as they were typed."""

    prompts: Sequence[str]
    prompts_file: Path | None = None
    from_image: Path | None = None
    image: Path | None = None
    mask: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTerms:
    """The options of the command that say how the order stands in the queue, as they were typed."""

    name: NameOption = None
    priority: PriorityOption[int] = 0
    max_cost: MaxCostOption = None
    min_vram: MinVramOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """The options of `generate` and `grid` that say what becomes of the results."""

    output: OutputOption = None
    wait: WaitOption = True
    estimated: EstimateOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOrder:
    """An order, found good as far as can be told without the server."""

    fields: SpecFields
    terms: dict[str, Any]
    """Keyword arguments of `Client.submit` beside the spec."""
    notes: tuple[str, ...] = ()
    """Parts of the repeated picture that the order cannot repeat."""
    files: tuple[Path, ...] = ()
    """Files that have to be uploaded before the order is submitted."""

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as it is sent."""
        return self.fields.spec


def check_order(asked: OrderOptions, terms: OrderTerms, others: Iterable[Fault] = ()) -> CheckedOrder:
    """Check an order. Raises InvalidInput with all faults of the spec and of the options, and `others`."""
    faults = list(others)
    repeated: PictureReading | None = None
    with collecting(faults):
        repeated = _reading_of(asked.from_image)
    fields = given_fields(asked, faults)
    if repeated is not None:
        fields = replace(fields, spec=spec_fields(repeated.fields).spec | fields.spec)
    files = {field: path for field, path in (("image", asked.image), ("mask", asked.mask)) if path is not None}
    if files:
        fields = replace(fields, spec=fields.spec | hashes_of(files, faults))
    unread = asked.from_image is not None and repeated is None  # its fault is enough
    faults += () if unread else as_options(_spec_faults(fields.spec))
    submitted = submit_terms(terms, faults)
    if faults:
        raise InvalidInput(faults)
    notes = () if repeated is None else (f"repeats {asked.from_image} by {repeated.source}", *repeated.notes)
    return CheckedOrder(fields=fields, terms=submitted, notes=notes, files=tuple(files.values()))


def submit_terms(terms: OrderTerms, faults: list[Fault]) -> dict[str, Any]:
    """Return keyword arguments of `Client.submit` beside the spec; what cannot be read is added to `faults`."""
    given: dict[str, Any] = {"name": terms.name, "priority": terms.priority}
    with collecting(faults):
        if terms.max_cost is not None:
            given["budget_micro_usd"] = micro_usd(terms.max_cost, where="--max-cost")
    with collecting(faults):
        if terms.min_vram is not None:
            given["min_vram_bytes"] = parse_size(terms.min_vram, option="--min-vram")
    with collecting(faults):
        check_job_name(terms.name)
    return given


@contextmanager
def in_options() -> Iterator[None]:
    """Name the options instead of fields of the spec in faults that the server finds."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(as_options(error.faults)) from None


def given_fields(asked: OrderOptions, faults: list[Fault]) -> SpecFields:
    """Return the fields that the options stand for; what cannot be read is added to `faults`."""
    lines, side_lengths, assigned = list[str](), dict[str, int](), dict[str, Any]()
    with collecting(faults):
        lines = [] if asked.prompts_file is None else prompt_lines(asked.prompts_file)
    with collecting(faults):
        side_lengths = _side_lengths(asked.size)
    with collecting(faults):
        assigned = parse_assignments(asked.assignments or (), spec=GenerateSpec)
    options = {
        "prompts": [*asked.prompts, *lines] or None,
        "model": None if asked.model is None else sent_name(asked.model),
        "loras": asked.loras and list(asked.loras),
        "num_images_per_prompt": asked.count,
        **side_lengths,
        "num_inference_steps": asked.steps,
        "guidance_scale": asked.guidance,
        "scheduler": asked.scheduler,
        "seed": asked.seed,
        "negative_prompt": asked.negative,
    }
    fields = spec_fields({name: value for name, value in options.items() if value is not None} | assigned)
    faults += fields.faults
    return fields


def _reading_of(file: Path | None) -> PictureReading | None:
    """Return the settings that a picture's file records. Raises InvalidInput for a file that records none."""
    if file is None:
        return None
    hint = "a PNG, JPEG or WebP file of Giornata or A1111, as it was saved"
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_IMAGE_BYTES + 1)
        if len(data) > MOST_IMAGE_BYTES:
            raise ValueError(f"the file is larger than {MOST_IMAGE_BYTES // 2**20} MiB")
        return picture_params_of(data)
    except OSError as error:
        said = error.strerror or "cannot be read"
    except ValueError as error:
        said = str(error)
    raise InvalidInput([Fault(where=FROM_IMAGE, message=f"{file}: {said}", hint=hint)])


def _side_lengths(size: str | None) -> dict[str, int]:
    if size is None:
        return {}
    found = SIZE.fullmatch(size.strip())
    if found is None:
        raise InvalidInput([Fault(where="--size", message=f"{size!r} is not WIDTHxHEIGHT", hint="--size 1024x1024")])
    return {"width": int(found[1]), "height": int(found[2])}


def prompt_lines(file: Path) -> list[str]:
    """Return the prompts of a file, one on each line; empty lines are left out. Raises InvalidInput."""
    try:
        return [line.strip() for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "is not a text in UTF-8"
        raise InvalidInput(
            [Fault(where="--prompts", message=f"{file}: {said}", hint="a prompt on each line")]
        ) from None


def _spec_faults(spec: dict[str, Any]) -> Iterable[Fault]:
    said = dict[str, Fault]()
    if "model" not in spec:
        hint = "give a name of giornata models, a hub id, or a folder from: giornata tiny-model DIR"
        said["spec.model"] = Fault(where="spec.model", message="no base model is given", hint=hint)
    if not {"prompts", "pictures"} & spec.keys():
        hint = 'such as: giornata generate "a red fox" --model MODEL'
        said["spec.prompts"] = Fault(where="spec.prompts", message="no prompt is given", hint=hint)
    _, faults = parse_spec(GENERATE_KIND, spec)
    yield from said.values()
    yield from (each for each in faults if each.where not in said)


def as_options(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults at the options that set the fields."""
    return [replace(fault, where=_option(fault.where)) for fault in faults]


def _option(where: str) -> str:
    """Return the option that sets the field; of several prompts the number of the one, from 1."""
    field, _, rest = where.removeprefix("spec.").partition(".")
    if not where.startswith("spec.") or field not in OPTIONS:
        return where
    return f"{OPTIONS[field]} {int(rest) + 1}" if field == "prompts" and rest.isdigit() else OPTIONS[field]


def hashes_of(files: Mapping[str, Path], faults: list[Fault]) -> dict[str, str]:
    """Return the sha256 of each file by its field. Files that are not there or cannot be shown, and a mask of another
    size than its picture, are added to `faults`.
    """
    there = {field: path for field, path in files.items() if path.is_file()}
    for field in files.keys() - there.keys():
        faults.append(
            Fault(where=FILE_OPTIONS[field], message=f"{files[field]} is no file", hint="name a picture's file")
        )
    looks = inspect([(FILE_OPTIONS[field], path) for field, path in there.items()]) if there else []
    sides: dict[str, Sides] = {}
    for field, look in zip(there, looks, strict=True):
        if look.width is not None and look.height is not None:
            sides[field] = (look.width, look.height)
        else:
            faults += look.faults
    faults += mask_fault(FILE_OPTIONS["mask"], sides.get("image"), sides.get("mask"))
    return {field: _sha256(path) for field, path in there.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
