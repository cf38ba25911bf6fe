"""`giornata train --from`: what becomes of another trainer's configuration is told whole, before anything is sent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from giornata.cli.jobs.inputs.base_models import sent_name
from giornata.cli.jobs.options.spec_options import with_model_option
from giornata.cli.options import misplaced
from giornata.cli.ui.output import EXIT_BAD_INPUT, Output
from giornata.control.jobs.submission.spec_faults import NO_DATASET, parse_spec
from giornata.domain.errors import Fault, InvalidInput
from giornata.foreign_configs.account import OPTION, Reading, Taken, means_something
from giornata.pictures.subsets import Subset
from giornata.protocol.presets import full_spec
from giornata.protocol.specs import TrainSpec, canonical_names

MODEL = "pretrained_model_name_or_path"
LONGEST = 60
_EITHER = {"max_train_steps": "num_train_epochs", "num_train_epochs": "max_train_steps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the pictures and the first weights: the options of the command, and then the file."""

    directory: Path | None = None
    class_directory: Path | None = None
    init_lora: Path | None = None
    subsets: tuple[Subset, ...] = ()
    class_subsets: tuple[Subset, ...] = ()


def read_foreign(files: Sequence[Path], ignored: Iterable[str]) -> Reading:
    """Read another trainer's configuration files, without the keys in `ignored`. Raises InvalidInput."""
    from giornata.foreign_configs.reading import read_configs, without

    return without(read_configs(files), ignored)


def with_file(reading: Reading | None, given: Sources) -> Sources:
    """The sources that the options name, and those of the file for what they do not name."""
    if reading is None:
        return given
    subject = given.directory is None
    classes = given.class_directory is None
    return Sources(
        directory=reading.directory if subject else given.directory,
        class_directory=reading.class_directory if classes else given.class_directory,
        init_lora=given.init_lora or reading.init_lora,
        subsets=reading.subsets if subject else (),
        class_subsets=reading.class_subsets if classes else (),
    )


def with_options(reading: Reading, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the file and those of the options, which win. What means nothing beside them is let go."""
    own, twice = canonical_names(TrainSpec, given)
    merged = {name: value for name, value in reading.fields.items() if _EITHER.get(name) not in own} | own
    kept = {name: value for name, value in merged.items() if name in own or means_something(name, merged)}
    if MODEL in kept and MODEL not in own:
        kept[MODEL] = sent_name(str(kept[MODEL]))
    return kept | dict(given) if twice else kept


def without_file(options: Mapping[str, object]) -> list[Fault]:
    """A fault for each option that means something beside a file only."""
    return misplaced(options, f"has no effect without {OPTION}", hint=f"add {OPTION} FILE, or leave the option out")


def beside_file(reading: Reading, options: Mapping[str, object]) -> list[Fault]:
    """A fault for each option that does not go with a file, and for each key that has no equal here."""
    hint = "leave one of them out; --set changes single fields"
    return misplaced(options, f"cannot be combined with {OPTION}", hint=hint) + [
        Fault(where=f"{OPTION} {row.key}", message=f"{_short(row.value)}: {row.why}", hint=f"--ignore {row.key}")
        for row in reading.refused
    ]


def end_of_look(
    reading: Reading, fields: Mapping[str, Any], sources: Sources, faults: list[Fault], out: Output
) -> int:
    """The end of a command that only looks. Returns the exit status. Raises InvalidInput for what is misplaced."""
    if len(faults) > len(reading.refused):
        raise InvalidInput(faults)
    own = {"class_dataset": NO_DATASET} if sources.class_directory or sources.class_subsets else {}
    prior = {"with_prior_preservation": True, **fields} if own else dict(fields)
    found = with_model_option(parse_spec("train", {**prior, "dataset": NO_DATASET, **own})[1], fields)
    for fault in found:
        out.say(f"to fix: {fault}")
    out.hint("  nothing was submitted; the same command without --show submits the job")
    told = [{"where": fault.where, "message": fault.message, "hint": fault.hint} for fault in found]
    out.result(_document(reading, fields, sources) | {"faults": told})
    return EXIT_BAD_INPUT if faults or found else 0


def tell(reading: Reading, fields: Mapping[str, Any], sources: Sources, out: Output) -> None:
    """The table of what was taken, what is refused, and one line of what has no meaning here."""
    rows = [_line(row, fields) for row in _told(reading)]
    out.say(f"from {reading.tool}:")
    out.table(("there", "value", "here", "value", ""), rows, prose=(4,))
    if reading.refused:
        refused = [(row.key, _short(row.value), row.why) for row in reading.refused]
        out.say("refused, because the result would differ:")
        out.table(("there", "value", "why"), refused, prose=(2,))
    named = {
        "pictures": sources.directory,
        "class pictures": sources.class_directory,
        "starts from": sources.init_lora,
    }
    for what, path in named.items():
        if path is not None:
            out.say(f"{what}: {path}")
    for folder in (*sources.subsets, *sources.class_subsets):
        at = "" if folder.resolution is None else f", at {folder.resolution} px"
        kept = "" if folder.kept is None else f"; {folder.kept.words}"
        out.say(f"pictures: {folder.path}, repeated {folder.repeats} times{at}{kept}")
    if reading.left_out:
        out.hint(f"no effect here: {', '.join(reading.left_out)}")


def _document(reading: Reading, fields: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """The same as data. `spec` has every field that the file or the options give."""
    return {
        "from": reading.tool,
        "taken": [asdict(row) for row in reading.taken],
        "refused": [asdict(row) for row in reading.refused],
        "without_meaning": list(reading.left_out),
        "pictures": [_folder(each) for each in sources.subsets],
        "class_pictures": [_folder(each) for each in sources.class_subsets],
        "directory": None if sources.directory is None else str(sources.directory),
        "class_directory": None if sources.class_directory is None else str(sources.class_directory),
        "init_lora": None if sources.init_lora is None else str(sources.init_lora),
        "spec": dict(fields),
    }


def _told(reading: Reading) -> list[Taken]:
    """Without defaults of theirs that are also ours."""
    usual = _defaults()
    return [row for row in reading.taken if not row.implied or usual.get(row.setting) != _plain(row.ours)]


def _defaults() -> dict[str, Any]:
    return {name: _plain(value) for name, value in full_spec({}).items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _line(row: Taken, fields: Mapping[str, Any]) -> tuple[str, ...]:
    return (row.key, _short(row.value), row.setting, _short(fields.get(row.setting)), _note(row, fields))


def _note(row: Taken, fields: Mapping[str, Any]) -> str:
    parts = ["default of that tool"] if row.implied else []
    replaced = row.setting not in fields or _plain(fields[row.setting]) != _plain(row.ours)
    parts += ["overridden by the command line"] if replaced and row.setting != MODEL else []
    return "; ".join([*parts, *([row.note] if row.note else [])])


def _folder(subset: Subset) -> dict[str, Any]:
    return {
        "path": str(subset.path),
        "repeats": subset.repeats,
        "caption": subset.caption,
        "resolution": subset.resolution,
        "captions": None if subset.kept is None else subset.kept.words,
    }


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else "–" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
