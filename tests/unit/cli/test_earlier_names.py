"""Every earlier or other name of a setting or field is accepted, and the reference says what it means now."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel

import giornata.cli.settings
import giornata.protocol
from giornata.cli.settings import Settings, load_settings
from giornata.cli.settings.fleet_settings import ScalingTable
from giornata.cli.settings.settings import OLD_NAMES
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.protocol.generation.grid import GridSpec
from giornata.protocol.generation.specs import GenerateSpec
from giornata.protocol.specs import TrainSpec
from giornata.protocol.uploads import DatasetItem

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ORDER: dict[str, Any] = {"model": "some/model", "prompts": ["a fox"]}
GRID: dict[str, Any] = {"model": "some/model", "prompt": "a fox", "axes": [{"field": "seed", "values": [1, 2]}]}
ORDER_VALUES: dict[str, Any] = {
    "steps": 7,
    "cfg_scale": 3.5,
    "sampler_name": "ddim",
    "n": 2,
    "repeats": 3,
    "prompt": ["a hen"],
}
"""A value for each other name of a field of an order."""
ITEM = {"sha256": "0" * 64, "name": "a.png"}
TRIED = {
    "ScalingTable": "tests/unit/cli/test_fleet_settings.py::test_earlier_names_in_a_scaling_table_mean_the_same",
    "TrainSpec": "tests/unit/control/test_user_spec_faults.py::test_every_alias_is_tried",
    "GenerateSpec": "here",
    "GridSpec": "here",
    "DatasetItem": "here",
}
"""The models whose fields have other names, and the test that tries each of the names."""


def other_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the field that each other name means."""
    fields = model.model_fields.items()
    return {
        str(each): name
        for name, field in fields
        if isinstance(field.validation_alias, AliasChoices)
        for each in field.validation_alias.choices
        if each != name
    }


def models_with_other_names() -> Iterator[type[BaseModel]]:
    for package in (giornata.protocol, giornata.cli.settings):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(found.name)).values():
                if isinstance(value, type) and issubclass(value, BaseModel) and other_names(value):
                    yield value


def changed(name: str) -> float:
    """Return a value that the setting may have, and that is not its default."""
    return type(Settings.model_fields[name].default)(Settings.model_fields[name].default // 2 or 0.5)


@pytest.mark.parametrize("old", OLD_NAMES)
def test_earlier_name_of_a_setting_is_accepted_from_the_environment(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = OLD_NAMES[old]
    monkeypatch.setenv(f"GIORNATA_{old.upper()}", str(changed(name)))
    assert getattr(load_settings(), name) == changed(name) != Settings.model_fields[name].default


@pytest.mark.parametrize("old", OLD_NAMES)
def test_earlier_name_of_a_setting_is_accepted_from_the_file_and_as_an_argument(old: str, tmp_path: Path) -> None:
    name, file = OLD_NAMES[old], tmp_path / "giornata.toml"
    file.write_text(f"{old} = {changed(name)}\n", encoding="utf-8")
    assert getattr(load_settings(file), name) == changed(name)
    assert getattr(load_settings(None, **{old: changed(name)}), name) == changed(name)


def test_every_earlier_name_of_a_setting_is_marked_in_the_reference() -> None:
    text = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    marked = dict(re.findall(r"^\| `(?:fleets\.NAME\.scaling\.)?(\w+)` \|.* Earlier name: `(\w+)`\.", text, re.M))
    expected = {**OLD_NAMES, **other_names(ScalingTable)}
    assert marked == {new: old for old, new in expected.items()}
    assert not {old for old in expected if old in Settings.model_fields}


@pytest.mark.parametrize(("kind", "model"), [("generate", GenerateSpec), ("grid", GridSpec)])
def test_other_names_of_fields_of_an_order_mean_the_same_as_ours(kind: str, model: type[BaseModel]) -> None:
    beside = ORDER if kind == "generate" else GRID
    for other, name in other_names(model).items():
        without = {key: value for key, value in beside.items() if key != name}
        theirs, faults = parse_spec(kind, without | {other: ORDER_VALUES[other]})
        ours, _ = parse_spec(kind, without | {name: ORDER_VALUES[other]})
        assert theirs is not None, faults
        assert theirs == ours
        assert theirs != parse_spec(kind, beside)[0]


def test_kohyas_name_of_the_repeats_of_a_picture_means_the_same_as_ours() -> None:
    assert other_names(DatasetItem) == {"num_repeats": "repeats"}
    assert DatasetItem.model_validate({**ITEM, "num_repeats": 3}).repeats == 3


@pytest.mark.parametrize(
    ("page", "model"), [("training-other-trainers.md", TrainSpec), ("generation.md", GenerateSpec)]
)
def test_every_other_name_of_a_field_of_a_spec_is_in_the_reference(page: str, model: type[BaseModel]) -> None:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- names:begin -->(.*?)<!-- names:end -->", text, re.S)
    rows: Mapping[str, str] = {
        other: name
        for others, name in re.findall(r"^\| (.*) \| `(\w+)` \|$", table, re.M)
        for other in re.findall(r"`(\w+)`", others)
    }
    assert rows == other_names(model)


def test_every_model_with_other_names_has_a_test_that_tries_them() -> None:
    concrete = {model.__name__ for model in models_with_other_names()}
    parts = {name for name in concrete if name.endswith("Fields")}
    assert concrete - parts == TRIED.keys()
