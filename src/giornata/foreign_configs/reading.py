"""Combine files to one reading: find the trainer of each, and the files that belong together."""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from giornata.domain.errors import Fault, InvalidInput
from giornata.foreign_configs.account import OPTION, Reading
from giornata.foreign_configs.ai_toolkit import is_ai_toolkit_file, read_ai_toolkit
from giornata.foreign_configs.kohya import TOOL, read_kohya
from giornata.foreign_configs.kohya_datasets import is_dataset_file, read_kohya_datasets
from giornata.foreign_configs.kohya_gui import gui_options, is_gui_file
from giornata.foreign_configs.onetrainer import is_onetrainer_file, read_onetrainer
from giornata.foreign_configs.onetrainer_concepts import is_concepts_file

MAX_BYTES = 2**20
KNOWN = "sd-scripts' TOML or JSON (options, datasets, or the GUI's), OneTrainer's JSON, or ai-toolkit's YAML"
_SD_SCRIPTS_KEYS = frozenset({"pretrained_model_name_or_path", "network_module", "train_data_dir", "dataset_config"})


def read_configs(files: Sequence[Path]) -> Reading:
    """Read the files of one run together.

    Paths in the files are relative to the working directory, as in the trainers themselves.

    Raises InvalidInput for what cannot be read, is of no trainer that is known, or does not belong together.
    """
    contents = [(file, _parsed(file)) for file in files]
    whole = [
        (file, content) for file, content in contents if is_onetrainer_file(content) or is_ai_toolkit_file(content)
    ]
    concepts = [content for _, content in contents if is_concepts_file(content)]
    if whole and len(contents) == len(whole) + len(concepts) and len(whole) == 1 and len(concepts) <= 1:
        ((_, content),) = whole
        if is_ai_toolkit_file(content) and not concepts:
            return read_ai_toolkit(content)
        if is_onetrainer_file(content):
            return read_onetrainer({**content, "concepts": concepts[0]} if concepts else content)
    if whole or concepts:
        raise _refused(files[0], "does not fit the other files", "give the files of one run of one trainer")
    return _sd_scripts(contents)


def without(reading: Reading, ignored: Iterable[str]) -> Reading:
    """The reading with these keys let go: refused ones are left out. Raises InvalidInput for keys that are not
    refused."""
    ignored = tuple(ignored)
    names = {row.key for row in reading.refused}
    faults = [
        Fault(where="--ignore", message=f"{key} is not among the keys that are refused", hint=_hint(names))
        for key in ignored
        if not any(_covers(key, name) for name in names)
    ]
    if faults:
        raise InvalidInput(faults)
    gone = [row.key for row in reading.refused if any(_covers(key, row.key) for key in ignored)]
    return replace(
        reading,
        refused=tuple(row for row in reading.refused if row.key not in gone),
        left_out=(*reading.left_out, *gone),
    )


def _covers(key: str, name: str) -> bool:
    return name == key or name.startswith(f"{key}.")


def _hint(names: Iterable[str]) -> str:
    return f"refused keys: {', '.join(names)}" if names else "no key is refused: omit --ignore"


def _sd_scripts(contents: Sequence[tuple[Path, Any]]) -> Reading:
    """Options and datasets, each from one file; the options may name the file with the datasets."""
    datasets = [
        (file, content) for file, content in contents if isinstance(content, dict) and is_dataset_file(content)
    ]
    options: dict[str, Any] = {}
    tool = TOOL
    for file, content in contents:
        if (file, content) in datasets:
            continue
        if not isinstance(content, dict):
            raise _refused(file, "is not a configuration of a supported trainer", f"supported: {KNOWN}")
        gui = is_gui_file(content)
        tool = "kohya_ss" if gui else tool
        flat = gui_options(content) if gui else _without_sections(content)
        if not gui and not _SD_SCRIPTS_KEYS & flat.keys():
            raise _refused(file, "is not a configuration of a supported trainer", f"supported: {KNOWN}")
        options |= flat
    named = options.get("dataset_config")
    if named and not datasets:
        file = Path(str(named))
        datasets = [(file, _parsed(file))]
        if not (isinstance(datasets[0][1], dict) and is_dataset_file(datasets[0][1])):
            raise _refused(file, "has no [[datasets]]", "name a file with [[datasets]] in dataset_config")
    if len(datasets) > 1:
        raise _refused(datasets[1][0], "is a second file with datasets", "put all datasets into one file")
    if datasets:
        return read_kohya_datasets(datasets[0][1], options, file=tool)
    return read_kohya(options, file=tool)


def _without_sections(content: Mapping[str, Any]) -> dict[str, Any]:
    """sd-scripts takes no notice of sections."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _parsed(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _refused(file, f"is larger than {MAX_BYTES // 2**20} MiB", "give a configuration")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise _refused(
            file,
            f"cannot be read: {error.strerror}",
            "paths start at the working directory",
        ) from None
    except UnicodeDecodeError as error:
        raise _refused(file, f"is not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    parsers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": yaml.safe_load,
        ".yml": yaml.safe_load,
    }
    parse = parsers.get(file.suffix.lower())
    if parse is None:
        raise _refused(file, "must end in .toml, .json, .yaml or .yml", f"supported: {KNOWN}")
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise _refused(file, f"cannot be parsed: {error}", "correct the file") from None


def _refused(file: Path, message: str, hint: str) -> InvalidInput:
    return InvalidInput([Fault(where=f"{OPTION} {file}", message=message, hint=hint)])
