"""Writes the generated parts of the docs from the code. `--check` says which pages are out of date."""

import importlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer
from pydantic import AliasChoices, BaseModel, TypeAdapter

from giornata.cli.main import app
from giornata.cli.settings import Settings
from giornata.cli.settings.fleet_settings import TABLES
from giornata.cli.settings.settings import OLD_NAMES
from giornata.domain.jobs.reasons import AMBIGUOUS_WHEN_SHARED, BAN, BLAME, RETRY, STRIKE, Reason
from giornata.fleets.opening import DRIVERS
from giornata.protocol.events import MEANING, OPERATOR_MEANING
from giornata.protocol.generation.annotators import ANNOTATORS
from giornata.protocol.generation.grid import GridSpec
from giornata.protocol.generation.preprocess import PreprocessSpec
from giornata.protocol.generation.samplers import NOT_OFFERED as ABSENT_SCHEDULERS
from giornata.protocol.generation.samplers import SAMPLERS, SCHEDULES
from giornata.protocol.generation.specs import GenerateSpec, OrderFields
from giornata.protocol.pretraining import PretrainConfig
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.foreign_names import NOT_OFFERED
from giornata.protocol.training.optimizer_args import ARGS

HERE = Path(__file__).parent
NOTHING = "none"
"""Default of a TOML field that may be left out and has no value then."""


def reasons_table() -> str:
    """Every reason with its row in each map."""

    def yes(value: bool) -> str:
        return "yes" if value else "–"

    maps = (RETRY, STRIKE, BAN, AMBIGUOUS_WHEN_SHARED)
    rows = [f"| `{r}` | {BLAME[r]} | {' | '.join(yes(each[r]) for each in maps)} |" for r in Reason]
    head = "| reason | blame | tried again | strike | banned for this job | of several at once: nobody's |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def settings_table() -> str:
    """Every setting with its variable, default and meaning."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = _default(field.default, field.default_factory)
        earlier = "".join(f" Earlier name: `{old}`." for old, new in OLD_NAMES.items() if new == name)
        rows.append(f"| `{name}` | `GIORNATA_{name.upper()}` | {default} | {field.description}{earlier} |")
    return "\n".join(["| setting | variable | default | meaning |", "|---|---|---|---|", *rows])


def fleet_tables() -> str:
    """Every field of the tables of fleets."""
    rows = []
    for table, model in TABLES.items():
        for name, field in model.model_fields.items():
            default = "required" if field.is_required() else _default(field.default, field.default_factory)
            alias = field.validation_alias
            old = alias.choices[1:] if isinstance(alias, AliasChoices) else ()
            earlier = "".join(f" Earlier name: `{each}`." for each in old)
            rows.append(f"| `{table}.{name}` | {default} | {field.description}{earlier} |")
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def _default(value: object, factory: object) -> str:
    return "" if factory is not None or value is None else f"`{_plain(value)}`"


def pretraining_table() -> str:
    """Every field of a pre-training configuration. A phase's are written as `phases.<field>`."""
    schema = TypeAdapter(PretrainConfig).json_schema()
    rows = []

    def add(properties: Mapping[str, Any], required: list[str], before: str) -> None:
        for name, each in properties.items():
            inner = (each.get("items") or each).get("$ref", "").rsplit("/", 1)[-1]
            table = schema["$defs"].get(inner, {})
            if "properties" in table:
                add(table["properties"], table.get("required", []), f"{before}{name}.")
                continue
            default = "required" if name in required else _default(each["default"], None) or NOTHING
            meaning = " ".join(each.get("description", "").split())
            rows.append(f"| `{before}{name}` | {default} | {_values(each, schema['$defs'])} | {meaning} |")

    add(schema["properties"], schema["required"], "")
    return "\n".join(["| field | default | values | meaning |", "|---|---|---|---|", *rows])


def driver_options(driver: str) -> str:
    """What a driver can be told in `[fleets.NAME.options]`."""
    module = importlib.import_module(DRIVERS[driver])
    rows = []
    for name, field in module.OPTIONS.model_fields.items():
        default = "required" if field.is_required() else _default(field.default, field.default_factory)
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def events_table() -> str:
    """Every type of event with what it says: of jobs, and those that belong to no job."""
    rows = [f"| `{each}` | {meaning} |" for each, meaning in [*MEANING.items(), *OPERATOR_MEANING.items()]]
    return "\n".join(["| type | meaning |", "|---|---|", *rows])


def commands_table() -> str:
    """Every command that does something by itself, as it is typed, with the first line of its help."""
    rows = [f"| `giornata {words}` | {text} |" for words, text in _commands(typer.main.get_command(app), ())]
    return "\n".join(["| command | does |", "|---|---|", *rows])


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    below = getattr(command, "commands", None)
    if words and (below is None or command.invoke_without_command):
        yield " ".join(words), command.get_short_help_str(limit=200)
    for name, inner in (below or {}).items():
        if not inner.hidden:
            yield from _commands(inner, (*words, name))


def spec_table(spec: type[BaseModel], *, besides: type[BaseModel] | None = None) -> str:
    """Every field of a spec, its own before those it has from others. `besides`: those that this spec has not."""
    schema = spec.model_json_schema(by_alias=False)
    properties, definitions = schema["properties"], schema.get("$defs", {})
    rows = []
    own = [name for name in spec.__annotations__ if name in spec.model_fields]
    for name in dict.fromkeys([*own, *spec.model_fields]):
        field = spec.model_fields[name]
        if besides is not None and name in besides.model_fields:
            continue
        value = "" if field.is_required() else _plain(field.get_default(call_default_factory=True))
        default = "required" if field.is_required() else f"`{value}`" if value not in {"", "{}", "[]"} else ""
        rows.append(f"| `{name}` | {default} | {_values(properties[name], definitions)} | {field.description} |")
    return "\n".join(["| field | default | values | meaning |", "|---|---|---|---|", *rows])


BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}


def _values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What a field of this JSON schema may be: its choices, or its bounds."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    choices = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    bounds = [f"{word} {schema[key]}" for key, word in BOUNDS.items() if key in schema]
    within = [
        "true, false" if each.get("type") == "boolean" else _values(each, definitions)
        for each in schema.get("anyOf", [])
    ]
    return ", ".join([*map(str, choices), *bounds, *filter(None, within)])


def names_table(spec: type[BaseModel]) -> str:
    """Other names that are understood as a field of a spec."""
    rows = []
    for name, field in spec.model_fields.items():
        alias = field.validation_alias
        others = [f"`{each}`" for each in alias.choices if each != name] if isinstance(alias, AliasChoices) else []
        if others:
            rows.append(f"| {', '.join(others)} | `{name}` |")
    return "\n".join(["| also understood | is |", "|---|---|", *rows])


def annotators_table() -> str:
    """Every annotator with its parameters, their defaults and bounds, and the models that it runs."""
    rows = []
    for name, facts in ANNOTATORS.items():
        params = ", ".join(
            f"`{each.name}` {each.default:g} ({each.least:g} … {each.most:.10g})" for each in facts.params
        )
        rows.append(f"| `{name}` | {facts.about} | {params} | {', '.join(facts.models)} |")
    return "\n".join(["| name | gives | parameters | models |", "|---|---|---|---|", *rows])


def samplers_table() -> str:
    """Every sampler with its names elsewhere, its diffusers class, and the noise schedules it can follow."""
    rows = []
    for each in SAMPLERS:
        settings = ", ".join(f"{name}={value}" for name, value in each.settings.items())
        made = f"{each.class_name}{f' ({settings})' if settings else ''}"
        schedules = ", ".join(each.schedules)
        rows.append(f"| `{each.name}` | {each.a1111} | {each.comfyui} | {made} | {schedules} |")
    head = "| name | A1111 | ComfyUI | diffusers | noise schedules |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def schedules_table() -> str:
    """Every noise schedule with its names elsewhere."""
    rows = []
    for each in SCHEDULES.values():
        settings = ", ".join(f"{name}={value}" for name, value in each.settings.items()) or "as the base model says"
        rows.append(f"| `{each.name}` | {each.a1111} | {', '.join((each.comfyui, *each.also))} | {settings} |")
    return "\n".join(["| name | A1111 | ComfyUI, others | diffusers |", "|---|---|---|---|", *rows])


def absent_schedulers_table() -> str:
    """Samplers and noise schedules that are not offered, with what to use instead."""
    rows = [f"| `{name}` | {advice} |" for name, advice in ABSENT_SCHEDULERS.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def foreign_names_table() -> str:
    """Names of other trainers that are no field here, with what to do instead."""
    advice: dict[str, list[str]] = {}
    for name, words in NOT_OFFERED.items():
        advice.setdefault(words, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {words} |" for words, names in advice.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def _plain(value: object) -> str:
    """The value as a user writes it, in TOML as in JSON: true, ["a", "b"]. Text stands without quotation marks."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_item(each) for each in value)}]"
    return json.dumps(value)


def _item(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_item(each)}' for key, each in value.items())}}}"
    return json.dumps(value)


def optimizer_args_table() -> str:
    """What optimizer_args may say to each optimizer."""
    rows = []
    for optimizer, args in ARGS.items():
        for name, arg in args.items():
            default = ", ".join(f"`{field}`" for field in arg.field) or (
                "" if arg.default in {None, math.inf} else f"`{_plain(arg.default)}`"
            )
            rows.append(f"| `{optimizer}` | `{name}` | {default} | {arg.values} | {arg.meaning} |")
    return "\n".join(["| optimizer | argument | default | values | meaning |", "|---|---|---|---|---|", *rows])


PARTS = {
    "architecture.md": {"reasons": reasons_table},
    "reference/settings.md": {"settings": settings_table, "fleets": fleet_tables, "pretraining": pretraining_table},
    "reference/webhooks.md": {"events": events_table},
    "reference/commands.md": {"commands": commands_table},
    "how-to/providers/local.md": {"options": partial(driver_options, "local")},
    "how-to/providers/kubernetes.md": {"options": partial(driver_options, "kubernetes")},
    "how-to/providers/skypilot.md": {"options": partial(driver_options, "skypilot")},
    "how-to/providers/static.md": {"options": partial(driver_options, "static")},
    "reference/training.md": {
        "spec": partial(spec_table, TrainSpec),
    },
    "reference/training-other-trainers.md": {
        "names": partial(names_table, TrainSpec),
        "foreign": foreign_names_table,
    },
    "reference/training-adapters.md": {"optimizer-args": optimizer_args_table},
    "reference/generation.md": {
        "generate": partial(spec_table, GenerateSpec),
        "grid": partial(spec_table, GridSpec, besides=OrderFields),
        "names": partial(names_table, GenerateSpec),
        "preprocess": partial(spec_table, PreprocessSpec),
        "annotators": annotators_table,
        "samplers": samplers_table,
        "schedules": schedules_table,
        "absent-schedulers": absent_schedulers_table,
    },
}


def rendered(page: str) -> str:
    """The page with its generated parts made anew. Raises ValueError when a page has lost its marks."""
    text = (HERE / page).read_text()
    for name, made in ((name, body()) for name, body in PARTS[page].items()):
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no marks for its generated part {name!r}")
        text = pattern.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)
    return text


def stale() -> list[str]:
    """The pages whose generated parts are not what the code says."""
    return [page for page in PARTS if rendered(page) != (HERE / page).read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(" ".join(stale()) or 0)
    for page in PARTS:
        (HERE / page).write_text(rendered(page))
