"""The options of `giornata grid`, turned into a grid's spec and checked whole."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from giornata.cli.jobs.options.order_options import (
    OPTIONS,
    CheckedOrder,
    OrderOptions,
    OrderTerms,
    as_options,
    given_fields,
    submit_terms,
)
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.protocol.generation.axis_texts import axis_of, axis_values
from giornata.protocol.generation.grid import GRID_KIND

AXIS, FILE = "--axis", "--file"
MOST_FILE_BYTES = 4 * 2**20
WRITE_AS = "a TOML, JSON or YAML file with prompt, axes, and any other field of a grid's spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The options that say what a grid has, as they were typed. `pictures.prompts` is the prompt, if there is one."""

    pictures: OrderOptions
    axes: Sequence[str] = ()
    file: Path | None = None


def check_grid(asked: GridOptions, terms: OrderTerms, others: Iterable[Fault] = ()) -> CheckedOrder:
    """Check a grid. Options go before the fields of the file. Raises InvalidInput with all faults, and `others`."""
    faults = list(others)
    written = dict[str, Any]()
    with collecting(faults):
        written = _written(asked.file)
    fields = given_fields(asked.pictures, faults)
    given = dict(fields.spec)
    prompts = given.pop("prompts", None)
    if prompts:
        given["prompt"] = prompts[0]
    prompt = str(given.get("prompt") or written.get("prompt") or "")
    negative = str(given.get("negative_prompt") or written.get("negative_prompt") or "")
    if asked.axes:
        given["axes"] = []
        for each in asked.axes:
            with collecting(faults):
                given["axes"].append(_axis(each, prompt + negative))
    spec = written | given
    unread = bool(faults)  # a fault of an option would come again as one of the spec
    faults += [] if unread and not {"prompt", "axes"} <= spec.keys() else _spec_faults(spec)
    submitted = submit_terms(terms, faults)
    if faults:
        raise InvalidInput(faults)
    return CheckedOrder(fields=replace(fields, spec=spec), terms=submitted)


def _axis(text: str, prompt: str) -> dict[str, Any]:
    """Return the axis that `NAME=VALUE,VALUE` stands for. Values may be `@FILE`. Raises InvalidInput."""
    name, _, values = (part.strip() for part in text.partition("="))
    if not name or not values:
        hint = "such as --axis who=doctor,nurse or --axis guidance_scale=4,7"
        raise InvalidInput([Fault(where=AXIS, message=f"{text!r} is not NAME=VALUE,VALUE", hint=hint)])
    return axis_of(name, _lines(values[1:]) if values.startswith("@") else _values(values), prompt)


def _values(text: str) -> list[Any]:
    try:
        return axis_values(text)
    except ValueError as error:
        raise InvalidInput([Fault(where=AXIS, message=str(error))]) from None


def _lines(file: str) -> list[str]:
    try:
        return [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "is not a text in UTF-8"
        raise InvalidInput([Fault(where=AXIS, message=f"{file}: {said}", hint="a value on each line")]) from None


def _written(file: Path | None) -> dict[str, Any]:
    """Return the fields of a file. Raises InvalidInput for a file that is not one object."""
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise ValueError(f"is larger than {MOST_FILE_BYTES // 2**20} MiB")
        found = _parsed(file.suffix.lower(), data.decode("utf-8-sig"))
        if not isinstance(found, dict):
            raise ValueError("is not one object with fields")
        return found
    except OSError as error:
        said = error.strerror or "cannot be read"
    except (ValueError, RecursionError) as error:
        said = str(error)
    raise InvalidInput([Fault(where=FILE, message=f"{file}: {said}", hint=WRITE_AS)])


def _parsed(suffix: str, text: str) -> Any:
    """Return the content of a file. Raises ValueError."""
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    if suffix not in {".yaml", ".yml"}:
        raise ValueError("is neither .toml nor .json nor .yaml")
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML is not read by this installation; write the grid as TOML or JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _spec_faults(spec: dict[str, Any]) -> list[Fault]:
    said = dict[str, Fault]()
    needed = {
        "model": ("no base model is given", "give a name of giornata models, a hub id, or a folder"),
        "prompt": ("no prompt is given", "such as: giornata grid 'a photo of a {who}' --axis who=doctor,nurse"),
        "axes": ("no axis is given", "such as --axis who=doctor,nurse"),
    }
    for name, (message, hint) in needed.items():
        if name not in spec:
            said[f"spec.{name}"] = Fault(where=f"spec.{name}", message=message, hint=hint)
    _, faults = parse_spec(GRID_KIND, spec)
    found = [*said.values(), *(each for each in faults if each.where not in said)]
    return [_at_option(each) for each in as_options(found)]


def _at_option(fault: Fault) -> Fault:
    field, _, rest = fault.where.removeprefix("spec.").partition(".")
    option = {"prompt": OPTIONS["prompts"], "axes": AXIS}.get(field)
    if option is None or not fault.where.startswith("spec."):
        return fault
    place = rest.split(".")[0]
    return replace(fault, where=f"{option} {int(place) + 1}" if field == "axes" and place.isdigit() else option)
