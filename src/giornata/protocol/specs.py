"""The specs of all kinds of job, and the facts that other packages read from them."""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Self

from pydantic import AliasChoices, Field, model_validator
from pydantic.fields import FieldInfo

from giornata.domain.errors import Fault
from giornata.domain.files.caption_length import CHUNK
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.generation.checks.named_models import uploaded_pictures
from giornata.protocol.generation.expand import picture_count
from giornata.protocol.generation.grid import GRID_KIND, GridSpec
from giornata.protocol.generation.preprocess import PREPROCESS_KIND, PreprocessSpec
from giornata.protocol.generation.specs import GENERATE_KIND, GenerateSpec
from giornata.protocol.model import Message
from giornata.protocol.pretraining_checks import ConsistentConfig
from giornata.protocol.training.base_model import BaseQuantization
from giornata.protocol.training.contradictions import contradictions
from giornata.protocol.training.file_names import sheet_file
from giornata.protocol.training.results import FLEET, steps_with_sheets
from giornata.protocol.training.train_fields import TrainFields


class TrainSpec(TrainFields):
    """DreamBooth LoRA of a Stable Diffusion XL or 1.5."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if faults := list(contradictions(self)):
            raise ValueError("; ".join(faults))
        return self


class PretrainSpec(Message):
    """Pre-training on the Ray cluster of the node that takes the job. Its checkpoints, and at the end the model, are
    in the storage that the configuration names, which the cluster has to reach."""

    config: ConsistentConfig = Field(
        description="Configuration of the run, as in the file of `giornata pretrain run`."
    )


class ScriptSpec(Message):
    """A kind of your own (`x-…`): any JSON object, handed to the workload as it is."""

    model_config = Message.model_config | {"extra": "allow"}


class CanarySpec(Message):
    """The platform's own trial of a machine that is on probation. Nobody submits it."""

    steps: int = Field(20, ge=1, le=10_000, description="Steps of a small training that every node can do.")


class ValidateSpec(Message):
    """Sample images of a training job after a step, from its checkpoint. The server makes such a job when the
    checkpoint is committed; nobody submits it."""

    job: str = Field(description="The training job. The sheet is a result of it, too.")
    step: int = Field(ge=1, description="Step of the checkpoint.")
    checkpoint: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of the checkpoint.")
    training: TrainSpec = Field(description="Spec of the training job.")


class ReplayCondition(Message):
    """Conditions that a checkpoint tells of, which a replay of its steps has to have."""

    from_step: int = Field(ge=0, description="Steps that were done before.")
    micro: int = Field(0, ge=0, description="Micro-batches of the next step that were done before.")
    place: int | None = Field(None, ge=0, description="Place in a shared batch; null: trained alone.")
    width: int | None = Field(None, ge=1, description="Places of the shared batch that were computed.")
    gradient_checkpointing: str | None = Field(
        None, description="Gradient checkpointing of a smaller memory plan; null: what the spec asks for."
    )
    rows: int | None = Field(
        None, ge=1, description="Pictures that went through the model at once; null: what the spec asks for."
    )


class AuditSpec(Message):
    """Steps of a training job between two committed checkpoints, to be run again. The server makes such a job when
    the later checkpoint is committed; nobody submits it, and it does not name the bytes that are expected."""

    audit: str = Field(description="The audit.")
    job: str = Field(description="The training job.")
    from_step: int = Field(ge=0, description="Step of the checkpoint to begin with; 0: the job's beginning.")
    to_step: int = Field(ge=1, description="Step of the checkpoint to arrive at.")
    checkpoint: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="sha256 of the checkpoint to begin with."
    )
    training: TrainSpec = Field(description="Spec of the training job.")
    conditions: tuple[ReplayCondition, ...] = Field(
        (),
        description="Conditions that the later checkpoint tells of, in order of steps; empty: nothing out of the "
        "ordinary.",
    )


PRETRAIN_KIND = "pretrain"
KINDS: Mapping[str, type[Message]] = MappingProxyType(
    {
        "train": TrainSpec,
        PRETRAIN_KIND: PretrainSpec,
        GENERATE_KIND: GenerateSpec,
        GRID_KIND: GridSpec,
        PREPROCESS_KIND: PreprocessSpec,
    }
)
AUDIT_KIND = "audit"
CANARY_KIND = "canary"
CHECKPOINT_ROLE = "checkpoint"
"""The part that its training job's checkpoint plays in a validation or an audit."""
INIT_ROLE = "init_lora"
"""The part of the file that a training job starts from."""
VALIDATE_KIND = "validate"
PLATFORM_KINDS: Mapping[str, type[Message]] = MappingProxyType(
    {AUDIT_KIND: AuditSpec, CANARY_KIND: CanarySpec, VALIDATE_KIND: ValidateSpec}
)
"""Kinds of which only the server makes jobs."""
OF_TRAINING = frozenset({AUDIT_KIND, VALIDATE_KIND})
"""Kinds whose spec holds the spec of a training job."""
OWN_KIND_PREFIX = "x-"


def spec_type(kind: str) -> type[Message] | None:
    """The spec of a kind; None when there is no such kind."""
    if kind.startswith(OWN_KIND_PREFIX):
        return ScriptSpec
    return KINDS.get(kind) or PLATFORM_KINDS.get(kind)


def model_key(kind: str, spec: Mapping[str, Any]) -> str:
    """Names the base model that a job needs, so that it can go to a node that holds it; empty for none."""
    if kind in ORDER_KINDS and kind != PREPROCESS_KIND:
        return _base_of_order(spec)
    if kind in OF_TRAINING:
        kind, spec = "train", spec["training"]
    if kind != "train":
        return ""
    parts = ("pretrained_model_name_or_path", "revision", "variant", "pretrained_vae_model_name_or_path")
    key = "|".join(str(spec.get(part) or "") for part in parts)
    content, held = spec.get("pretrained_model_sha256"), spec.get("base_quantization") or BaseQuantization.NONE
    key = f"{key}|{content}" if content else key
    return key if held == BaseQuantization.NONE else f"{key}|{held}"


def _base_of_order(spec: Mapping[str, Any]) -> str:
    vae = spec.get("vae") or {}
    parts = (spec["model"]["name"], spec.get("revision"), spec.get("variant"), vae.get("name"))
    key = "|".join(str(part or "") for part in parts)
    return f"{key}|{content}" if (content := spec["model"].get("sha256")) else key


def canonical_names(expected: type[Message], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The fields under their own names instead of their aliases, and a fault for each that was given twice."""
    own = _names_by_alias(expected)
    found: dict[str, Any] = {}
    faults = []
    for alias, value in given.items():
        name = own.get(alias, alias)
        if name in found:
            message = f"the same field is given as {name} too"
            faults.append(Fault(where=f"spec.{alias}", message=message, hint="give it once"))
        found[name] = value
    return found, faults


@cache
def _names_by_alias(expected: type[Message]) -> Mapping[str, str]:
    return {alias: name for name, field in expected.model_fields.items() for alias in _aliases(field)}


def _aliases(field: FieldInfo) -> list[str]:
    alias = field.validation_alias
    return [each for each in alias.choices if isinstance(each, str)] if isinstance(alias, AliasChoices) else []


def input_files(kind: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
    """The sha256 of each file that a job reads besides its datasets, by the part that it plays."""
    if kind in ORDER_KINDS:
        return dict(uploaded_pictures(spec))
    role = {"train": INIT_ROLE, VALIDATE_KIND: CHECKPOINT_ROLE, AUDIT_KIND: CHECKPOINT_ROLE}.get(kind)
    named = {} if role is None else {role: spec.get(role)}
    if kind == AUDIT_KIND:
        named[INIT_ROLE] = spec["training"].get(INIT_ROLE)
    return {role: sha256 for role, sha256 in named.items() if isinstance(sha256, str)}


def step_artifacts(kind: str, spec: Mapping[str, Any]) -> frozenset[str]:
    """Names of artifacts that show the job as it was after a step. They stay when another attempt goes on."""
    if kind != "train" or not spec.get("validation_steps"):
        return frozenset()
    steps = steps_with_sheets(spec["validation_steps"], spec["max_train_steps"])
    return frozenset(sheet_file(step, spec.get("output_name")) for step in steps)


def step_of_sheet(kind: str, spec: Mapping[str, Any], name: str) -> int | None:
    """Return the step whose sample images the artifact of this name holds; None for every other artifact."""
    if name not in step_artifacts(kind, spec):
        return None
    steps = steps_with_sheets(spec["validation_steps"], spec["max_train_steps"])
    return next(step for step in steps if sheet_file(step, spec.get("output_name")) == name)


def total_steps(kind: str, spec: Mapping[str, Any]) -> int | None:
    """Return the number of the job's steps, if its kind says so. A step of an order is a picture."""
    if kind in ORDER_KINDS:
        return picture_count(kind, spec)
    if kind == PRETRAIN_KIND:
        batch = spec["config"]["train"]["global_batch_size"]
        steps: int = sum(-(-phase["samples"] // batch) for phase in spec["config"]["phases"])
        return steps
    value = spec.get("max_train_steps" if kind == "train" else "steps")
    return value if isinstance(value, int) else None


STEP_SIZE = (
    "resolution",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "train_text_encoder",
    "with_prior_preservation",
    "prior_prediction",
    "mixed_precision",
    "compile",
    "cuda_graphs",
)
"""Fields that decide, besides the base model, how much work one training step is."""


def _picture_size(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide, besides the base model, how much work one picture of an order is."""
    second = spec.get("high_resolution") or {}
    if "annotator" in spec:
        return {"annotator": spec["annotator"]}
    return {name: spec.get(name) for name in ("width", "height", "num_inference_steps")} | {
        "strength": spec.get("strength") if spec.get("image") else None,
        "controlnets": len(spec.get("controlnets") or ()),
        "refiner": spec.get("refiner") is not None,
        "second": [second.get(name) for name in ("width", "height", "strength", "num_inference_steps")],
    }


def shape_key_of(kind: str, spec: Mapping[str, Any]) -> str:
    """The same for jobs of one kind, on one base model, with equal fields of `STEP_SIZE`. Of orders,
    the same size of a picture.

    `spec` is the stored one, in which every default is written down. 32 hexadecimal digits.
    """
    size = _picture_size(spec) if kind in ORDER_KINDS else {name: spec.get(name) for name in STEP_SIZE}
    if spec.get("validation_steps") and spec.get("validation_by") != FLEET:
        size |= {name: spec.get(name) for name in ("validation_steps", "sample_prompts", "sample_steps")}
    if spec.get("validation_split"):
        size |= {name: spec.get(name) for name in ("validation_split", "validate_every_n_steps")}
    if (length := spec.get("max_token_length", CHUNK)) != CHUNK:
        size["max_token_length"] = length
    told = {"kind": kind, "model": model_key(kind, spec), "size": size}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("ascii")).hexdigest()[:32]
