"""Reads the configuration of a pre-training run and reports all of its faults at once, each with its field."""

import copy
import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pretraining import LATENT_SIDE_PX, Ingest, Mode, Parallel, PretrainConfig, PretrainOptimizer
from giornata.protocol.training.optimization import LrScheduler

ALIKE = 0.75
"""Similarity (0 to 1) from which an unknown field gets a known one as a hint."""
CONTRADICTION = "contradiction"
"""pydantic's type of an error that several fields make together."""
LEAST: Mapping[str, Any] = {
    "name": "stand-in",
    "storage": "stand-in",
    "data": {"shards": "stand-in"},
    "model": {"architecture": "shapes"},
    "train": {"global_batch_size": 1},
    "phases": [{"name": "stand-in", "resolution": 512, "samples": 1}],
}
"""The least configuration. Its values stand in for required ones that are wrong, so that others can be compared."""

_FIXED = "the number of encoders does not change during a run; remove it"
FORMER: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "ingest": {"dedupe_hash_distance": (None, "pictures of equal bytes are one, and no others; remove it")},
    "encode": {
        "max_encoders": (None, _FIXED),
        "correct_after_s": (60.0, _FIXED),
        "restart_s": (None, _FIXED),
    },
    "train": {"token_routing": (0.0, "every image token takes the whole way; remove it")},
}
"""By table, fields that configurations had: the value that asked for nothing, and what to do about others."""


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file. Raises InvalidInput when the file cannot be read, or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput([Fault(where=str(path), message=f"cannot be read: {error.strerror}")]) from None
    except ValueError as error:  # of TOML or of UTF-8
        raise InvalidInput([Fault(where=str(path), message=f"is not TOML: {error}")]) from None


def parse(values: Mapping[str, Any]) -> PretrainConfig:
    """The configuration in these values. Raises InvalidInput with all faults, each with its field."""
    try:
        return CONFIG.validate_python(dict(values))
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    try:
        if wrong[0]["type"] != CONTRADICTION:  # these are looked for when each field is right by itself
            CONFIG.validate_python(_repaired(values, wrong))
    except ValidationError as error:
        told = [_place(each) for each in wrong]
        wrong += [each for each in error.errors(include_url=False) if not _rests_on(each, told)]
    raise InvalidInput(map(fault_of, wrong))


def parse_ingest(values: Mapping[str, Any]) -> Ingest:
    """The options of an ingest alone. Raises InvalidInput with all faults, each with its field."""
    try:
        return TypeAdapter(Ingest).validate_python(dict(values))
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    raise InvalidInput(fault_of(each, under="ingest.") for each in wrong)


def folder_faults(config: PretrainConfig) -> list[Fault]:
    """Folders that would be others on each machine that reads them: for a run that is begun elsewhere."""
    named = {
        "storage": config.storage,
        "data.shards": config.data.shards,
        "encode.latents": config.encode.latents,
        "evaluate.inception": config.evaluate.inception,
    }
    hint = "a path from the root that all nodes of the cluster see, or s3://bucket/path"
    return [
        Fault(where=where, message=f"{value!r} is another folder on each machine", hint=hint)
        for where, value in named.items()
        if value is not None and "://" not in value and not PurePosixPath(value).is_absolute()
    ]


def _contradictions(config: PretrainConfig) -> Iterator[InitErrorDetails]:
    """Values that cannot go together."""
    train, workers, phases = config.train, config.workers, config.phases
    if train.channels_last and train.parallel is not Parallel.DDP:
        message = f"cannot go with train.parallel {train.parallel}, which takes contiguous weights only"
        hint = "leave it out, or set train.parallel to ddp"
        yield _cannot("train.channels_last", message, hint, "train.parallel")
    if train.optimizer is PretrainOptimizer.ADAMW_8BIT and (
        train.parallel is not Parallel.DDP or train.channels_last
    ):
        message = "adamw_8bit keeps its moments in blocks of whole, contiguous weights"
        hint = "set train.parallel to ddp and leave out train.channels_last, or choose adamw"
        yield _cannot("train.optimizer", message, hint, "train.parallel", "train.channels_last")
    if workers.min_trainers is not None and workers.min_trainers > workers.trainers:
        hint = "between 1 and workers.trainers"
        yield _cannot("workers.min_trainers", "is above workers.trainers", hint, "workers.trainers")
    if train.global_batch_size < workers.trainers:
        hint = "every trainer needs a picture"
        yield _cannot("train.global_batch_size", "is less than workers.trainers", hint, "workers.trainers")
    for place, phase in enumerate(phases):
        if phase.lr_scheduler is LrScheduler.CONSTANT and phase.lr_warmup_steps:
            hint, where = "use constant_with_warmup", f"phases.{place}.lr_scheduler"
            yield _cannot(where, "constant has no warm-up", hint, f"phases.{place}.lr_warmup_steps")
        if phase.name in {each.name for each in phases[:place]}:
            hint = "each phase has its own name"
            yield _cannot(f"phases.{place}.name", f"{phase.name!r} names another phase too", hint)
    if config.tracking.trace_rows and "://" in config.storage:
        hint = "name a folder as storage, or leave it out"
        yield _cannot("tracking.trace_rows", "needs a folder as storage", hint, "storage")
    yield from (*_of_encoding(config), *_of_evaluation(config))


def _of_encoding(config: PretrainConfig) -> Iterator[InitErrorDetails]:
    data, encode = config.data, config.encode
    steps, least = data.bucket_reso_steps, min(phase.resolution for phase in config.phases)
    if data.enable_bucket and (not 0 < steps <= least or steps % LATENT_SIDE_PX):
        hint = f"a multiple of {LATENT_SIDE_PX}, not above the least resolution"
        yield _cannot("data.bucket_reso_steps", f"cannot be {steps}", hint, "data.enable_bucket", "phases")
    if encode.mode is Mode.OFFLINE and not encode.store_text:
        hint = "leave it out, or set encode.mode to hybrid, which encodes text beside the run"
        yield _cannot("encode.store_text", "mode offline reads the text that is stored", hint, "encode.mode")


def _of_evaluation(config: PretrainConfig) -> Iterator[InitErrorDetails]:
    evaluate, train, rows = config.evaluate, config.train, "train.validation_rows"
    if train.validation_rows:
        return
    for name in ("clip", "inception"):
        if getattr(evaluate, name) is not None:
            yield _cannot(f"evaluate.{name}", "has no held-out rows to compare with", f"set {rows} above 0", rows)
    if evaluate.checkpoints and not train.validation_prompts:
        hint = f"name train.validation_prompts, or hold back {rows}"
        yield _cannot("evaluate.checkpoints", "there is nothing to evaluate", hint, rows, "train.validation_prompts")


def _cannot(where: str, message: str, hint: str, *others: str) -> InitErrorDetails:
    """`where` cannot be so beside `others`."""
    context = {"message": message, "hint": hint, "others": others}
    place = tuple(int(part) if part.isdecimal() else part for part in where.split("."))
    return InitErrorDetails(type=PydanticCustomError(CONTRADICTION, "{message}", context), loc=place, input=None)


def _consistent(config: PretrainConfig) -> PretrainConfig:
    if found := list(_contradictions(config)):
        raise ValidationError.from_exception_data("PretrainConfig", found)
    return config


def _without_former(values: Any) -> Any:
    """The values without former fields that ask for nothing, which whole configurations of older versions name."""
    if not isinstance(values, dict):
        return values
    left = dict(values)
    for table in FORMER.keys() & values.keys():
        if isinstance(given := values[table], dict):
            nothing = {name: default for name, (default, _) in FORMER[table].items()}
            left[table] = {k: v for k, v in given.items() if k not in nothing or v != nothing[k]}
    return left


ConsistentConfig = Annotated[PretrainConfig, BeforeValidator(_without_former), AfterValidator(_consistent)]
"""A configuration as it comes in from outside. What the run itself makes of one need not be consistent."""
CONFIG: TypeAdapter[PretrainConfig] = TypeAdapter(ConsistentConfig)


def fault_of(detail: ErrorDetails, *, under: str = "") -> Fault:
    """A fault from pydantic's error, with the field's whole name below `under`."""
    where = under + _place(detail)
    if detail["type"] == CONTRADICTION:
        return Fault(where=where, message=detail["msg"], hint=detail["ctx"]["hint"])
    if detail["type"] == "unexpected_keyword_argument":
        if former := FORMER.get(where.rpartition(".")[0], {}).get(str(detail["loc"][-1])):
            return Fault(where=where, message="is not a field any more", hint=former[1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), _field_names(), n=1, cutoff=ALIKE)
        return Fault(where=where, message="unknown field", hint=f"did you mean {near[0]}?" if near else "remove it")
    message, given = detail["msg"].removeprefix("Value error, "), detail["input"]
    shown = f"; it is {given!r}" if isinstance(given, str | int | float) and len(repr(given)) <= 80 else ""
    return Fault(where=where or "config", message=message[:1].lower() + message[1:] + shown)


def _place(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"])


def _rests_on(detail: ErrorDetails, told: Iterable[str]) -> bool:
    """Return True when a contradiction is about a field in `told`: the compared value is only a substitute."""
    fields = (_place(detail), *detail["ctx"]["others"])
    return any(f"{one}.".startswith(f"{two}.") or f"{two}.".startswith(f"{one}.") for one in fields for two in told)


@cache
def _field_names() -> list[str]:
    """Names of the fields of all tables."""
    schema = CONFIG.json_schema()
    return sorted({name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})})


def _repaired(values: Mapping[str, Any], wrong: Iterable[ErrorDetails]) -> dict[str, Any]:
    """The values with what is required, or else with nothing, in place of each that is wrong."""
    left = copy.deepcopy(dict(values))
    for each in wrong:
        place = each["loc"][: 3 if each["loc"][:1] == ("phases",) else 2]
        holder: Any = left
        least: Any = LEAST
        for part in place[:-1]:
            holder, least = holder[part], least.get(part, {}) if isinstance(part, str) else least[0]
        last = place[-1]
        if isinstance(last, int):
            holder[last] = dict(least[0])
        elif last in least:
            holder[last] = copy.deepcopy(least[last])
        else:
            holder.pop(last, None)
    return left
