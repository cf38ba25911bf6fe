"""Read a sweep's grid and its list of changes, in the words of the command line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from giornata.cli.jobs.options.spec_options import parse_assignments, parse_value
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.specs import TrainSpec, canonical_names

Change = dict[str, Any]


def read_grid(assignments: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Divide `--set` into the fields that all jobs have, and those that take several values.

    rank=8,16 are two values, and so is [8, 16] in JSON. Of a field that is a list itself, or a text such as a prompt,
    only a list in JSON has several values. Raises InvalidInput that lists every assignment without a name.
    """
    common, grid = parse_assignments(assignments), dict[str, list[Any]]()
    texts = {key.strip(): text for key, _, text in (each.partition("=") for each in assignments)}
    for key, text in texts.items():
        values = _values(key, text)
        if len(values) > 1:
            grid[key] = values
            del common[key]
    return common, grid


def read_changes(path: Path) -> list[Change]:
    """Return the changes in a JSON file: a list of objects. Raises InvalidInput."""
    hint = 'such as [{"rank": 8}, {"rank": 16, "learning_rate": 5e-5}]'
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput([Fault(where="--changes", message=f"{path} cannot be read: {error}")]) from None
    except json.JSONDecodeError as error:
        raise InvalidInput([Fault(where="--changes", message=f"{path} is not JSON: {error}", hint=hint)]) from None
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) and each for each in found):
        message = f"{path} is not a list of objects with fields in them"
        raise InvalidInput([Fault(where="--changes", message=message, hint=hint)])
    return found


def _values(key: str, text: str) -> list[Any]:
    own = next(iter(canonical_names(TrainSpec, {key: None})[0]))
    field = TrainSpec.model_fields.get(own)
    value, is_list = parse_value(text), field is not None and _holds(field.annotation, (tuple, list))
    if isinstance(value, list):
        return value if not is_list or (all(isinstance(each, list) for each in value) and value) else [value]
    if field is None or is_list or not isinstance(value, str) or _is_prose(field.annotation):
        return [value]
    return [parse_value(part.strip()) for part in text.split(",") if part.strip()]


def _is_prose(annotation: Any) -> bool:
    """Return True for a field whose values may have commas in them: any text."""
    return _holds(annotation, (str,))


def _holds(annotation: Any, wanted: tuple[type, ...]) -> bool:
    origin = get_origin(annotation)
    if annotation in wanted or origin in wanted:
        return True
    return any(_holds(each, wanted) for each in get_args(annotation))


def first_job(common: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], changes: Sequence[Change]) -> Change:
    """Return the fields of the first job, by which the command checks pictures and spec before it sends anything."""
    change = changes[0] if changes else {field: values[0] for field, values in grid.items()}
    return {**canonical_names(TrainSpec, common)[0], **canonical_names(TrainSpec, change)[0]}
