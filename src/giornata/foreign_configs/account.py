"""The account of a foreign configuration: each key is taken, refused, or has no effect here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from giornata.pictures.subsets import Subset
from giornata.protocol.specs import TrainSpec

OPTION = "--from"
"""The option that names such a configuration."""
NONE_GIVEN: Mapping[str, Any] = MappingProxyType({})
NOT_YET = "this version has no setting {setting}, and without it the result would be another"
NOT_KNOWN = "this key is not known here, so nobody can say whether the result would be the same"
_OFF: tuple[Any, ...] = (None, False, 0, "", "0", "none", "None", "false", [], {}, ())
_WITHOUT_ADAMS = ("adafactor", "lion", "came")
_HUBER = ("huber", "smooth_l1")
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A key of theirs and the setting here that it became. `implied`: the file leaves it to the tool's default."""

    key: str
    value: Any
    setting: str
    ours: Any
    implied: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedKey:
    """A key that has no equal here and would change the result."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The content of a configuration. Paths are as the file has them, from the working directory."""

    tool: str
    taken: tuple[Taken, ...] = ()
    refused: tuple[RefusedKey, ...] = ()
    left_out: tuple[str, ...] = ()
    directory: Path | None = None
    class_directory: Path | None = None
    init_lora: Path | None = None
    subsets: tuple[Subset, ...] = ()
    class_subsets: tuple[Subset, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a train spec."""
        return {row.setting: row.ours for row in self.taken}


def is_off(value: Any) -> bool:
    """Return True when the value switches its key off: false, zero, nothing."""
    return any(value is off or (type(value) is type(off) and value == off) for off in _OFF) or value == 0.0


@dataclass(slots=True, kw_only=True)
class Account:
    """Collects what becomes of the keys in `given`; `defaults` are the tool's own for those that are not there."""

    given: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    refused: dict[str, RefusedKey] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def value(self, key: str) -> Any:
        """Return the file's value for this key, or the tool's default. An empty text counts as not given."""
        self.seen.add(key)
        given = self.given.get(key)
        return self.defaults.get(key) if given is None or given == "" else given

    def implied(self, key: str) -> bool:
        """Return True when the file leaves the key to the tool's default."""
        return self.given.get(key) in (None, "")

    def take(self, key: str, setting: str, ours: Any, note: str = "") -> None:
        """Set `setting` to `ours`. Refuses the key where there is no such setting or the value is out of bounds."""
        value = self.value(key)
        if setting not in TrainSpec.model_fields:
            self.without_equal(key, NOT_YET.format(setting=setting))
            return
        try:
            checked = _checker(setting).validate_python(ours)
        except ValidationError as error:
            said = "; ".join(each["msg"] for each in error.errors()[:2])
            self.refuse(key, f"{setting} cannot be {ours!r} here: {said}")
            return
        checked = checked if isinstance(checked, bool | int | float | str | None) else ours
        row = Taken(key=key, value=value, setting=setting, ours=checked, implied=self.implied(key), note=note)
        self.taken[setting] = row

    def take_as_is(self, names: Mapping[str, str]) -> None:
        """Take keys whose values mean the same here, by the settings that they are called."""
        for key, setting in names.items():
            value = self.value(key)
            if value is not None:
                self.take(key, setting, value)

    def refuse(self, key: str, why: str) -> None:
        """Say that the key has no equal here."""
        self.seen.add(key)
        self.refused[key] = RefusedKey(key=key, value=self.given.get(key, self.defaults.get(key)), why=why)

    def without_equal(self, key: str, why: str) -> None:
        """Refuse the key where it is switched on; where it is off, it has no meaning here."""
        if is_off(self.value(key)):
            self.leave(key)
        else:
            self.refuse(key, why)

    def leave(self, *keys: str) -> None:
        """Keys without meaning here, as far as the file has them."""
        self.seen.update(keys)
        self.left_out.update(dict.fromkeys(key for key in keys if not self.implied(key)))

    def close(self) -> None:
        """Drop keys without meaning beside the rest, and refuse keys that no rule has read."""
        kind = self.taken.get("adapter_type")
        if kind is not None and kind.ours == "lokr":
            self.take(kind.key, "output_formats", ["kohya"], "diffusers loads no LoKr")
        fields = {row.setting: row.ours for row in self.taken.values()}
        for setting in [name for name in self.taken if not means_something(name, fields)]:
            self.leave(self.taken.pop(setting).key)
        for key in self.given:
            if key not in self.seen:
                self.without_equal(key, NOT_KNOWN)

    def reading(self, tool: str, **sources: Any) -> Reading:
        """Close the account, and return its taken, refused and omitted keys."""
        self.close()
        told = {row.key for row in self.taken.values()} | self.refused.keys()
        return Reading(
            tool=tool,
            taken=tuple(self.taken.values()),
            refused=tuple(self.refused.values()),
            left_out=tuple(key for key in self.left_out if key not in told),
            **sources,
        )


def _only(setting: str, *values: Any) -> Callable[[Fields], bool]:
    return lambda fields: fields.get(setting) in values


def _wandb(fields: Fields) -> bool:
    return "wandb" in fields.get("report_to", ())


_NEEDS: Mapping[str, Callable[[Fields], bool]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("keep_tokens", "keep_tokens_separator", "caption_separator"), _only("shuffle_caption", True)
        ),
        **dict.fromkeys(
            ("bucket_reso_steps", "min_bucket_reso", "max_bucket_reso", "bucket_no_upscale"),
            _only("enable_bucket", True),
        ),
        **dict.fromkeys(
            (
                "text_encoder_lr",
                "text_encoder_learning_rates",
                "text_encoder_target_modules",
                "stop_text_encoder_training",
            ),
            _only("train_text_encoder", True),
        ),
        "lr_num_cycles": _only("lr_scheduler", "cosine_with_restarts"),
        "lr_power": _only("lr_scheduler", "polynomial"),
        "lr_warmup_steps": lambda fields: fields.get("lr_scheduler", "constant") != "constant",
        **dict.fromkeys(("huber_c", "huber_schedule"), _only("loss_type", *_HUBER)),
        **dict.fromkeys(("decompose_both", "decompose_factor"), _only("adapter_type", "lokr")),
        **dict.fromkeys(
            ("adam_beta1", "adam_beta2", "adam_epsilon"), lambda fields: fields.get("optimizer") not in _WITHOUT_ADAMS
        ),
        "prior_loss_weight": _only("with_prior_preservation", True),
        "ema_decay": _only("use_ema", True),
        **dict.fromkeys(
            ("validation_steps", "sample_steps", "sample_guidance_scale"),
            lambda fields: bool(fields.get("sample_prompts")),
        ),
        **dict.fromkeys(("wandb_project", "wandb_entity", "wandb_run_name"), _wandb),
        "multires_noise_discount": lambda fields: bool(fields.get("multires_noise_iterations")),
    }
)
"""Settings that a spec takes only beside others. The tools ignore their keys in such a case, too."""


def means_something(setting: str, fields: Fields) -> bool:
    """Return True when the setting has a meaning beside these fields."""
    needs = _NEEDS.get(setting)
    return needs is None or needs(fields)


def listed(value: Any) -> list[Any]:
    """A list, or what stands for one of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def agreed(values: Iterable[Any]) -> tuple[bool, Any]:
    """Return whether all values are equal, and the first value (None without any)."""
    found = list(values)
    return all(each == found[0] for each in found), found[0] if found else None


def side_of(value: Any) -> int | None:
    """The resolution that a value gives, in pixels; None where it is none that a job can have."""
    try:
        return int(_checker("resolution").validate_python(value))
    except ValidationError:
        return None


@cache
def _checker(setting: str) -> TypeAdapter[Any]:
    one = TrainSpec.model_fields[setting]
    expected: Any = Annotated[(one.annotation, *one.metadata)] if one.metadata else one.annotation
    return TypeAdapter(expected)
