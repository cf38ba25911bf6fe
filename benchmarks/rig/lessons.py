"""Lessons of the drawing model in benchmarks/learning.py, by name. LearningRig in rig/learning_rig.py gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

PROMPT = "a sks shape"
COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "dataset": "ds_1",
        "instance_prompt": PROMPT,
        "resolution": 64,
        "center_crop": True,
        "rank": 8,
        "max_train_steps": 150,
        "learning_rate": 2e-3,
        "lr_scheduler": "cosine",
        "train_batch_size": 4,
        "mixed_precision": "no",
        "checkpointing_steps": 1000,
    }
)
PREDICTED = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a shape"}
DEEP = {
    "max_train_steps": 300,
    "rank": 16,
    "learning_rate": 2e-3,
    "target_modules": ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2"],
}
"""For subjects of two colors."""
CLASS = {"with_prior_preservation": True, "class_prompt": "a shape"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What differs from COMMON. `class_pictures`: shapes that were drawn, or drawn by the base from their captions.
    `neighbors` train in the same batch, each on a subject of its own; `first` is a lesson whose LoRA this one
    begins with."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    class_pictures: str = ""
    captions: str = ""
    transparent: bool = False
    wide: bool = False
    repeats: Sequence[int] = (1,)
    neighbors: Sequence[str] = ()
    first: str = ""


LESSONS: Mapping[str, Lesson] = MappingProxyType(
    {
        "plain": Lesson(),
        "plain, 300 steps": Lesson(fields={"max_train_steps": 300}),
        "plain, 75 steps": Lesson(fields={"max_train_steps": 75}),
        "more layers, 300 steps": Lesson(fields=DEEP),
        "more layers, 300 steps, prior prediction": Lesson(fields=DEEP | PREDICTED),
        "more layers, 3e-3": Lesson(fields=DEEP | PREDICTED | {"learning_rate": 3e-3}),
        "prior prediction": Lesson(fields=PREDICTED),
        "prior prediction, 300 steps": Lesson(fields=PREDICTED | {"max_train_steps": 300}),
        "prior prediction, weight 2": Lesson(fields=PREDICTED | {"prior_loss_weight": 2.0}),
        "class pictures with captions": Lesson(fields=CLASS | {"class_dataset": "ds_2"}, class_pictures="drawn"),
        "class pictures by the base, with captions": Lesson(
            fields=CLASS | {"class_dataset": "ds_2"}, class_pictures="by the base"
        ),
        "class pictures generated": Lesson(fields=CLASS | {"num_class_images": 64}),
        "rsLoRA": Lesson(fields={"use_rslora": True, "alpha": 2.8}),
        "DoRA": Lesson(fields={"use_dora": True}),
        "LoKr": Lesson(
            fields={"adapter_type": "lokr", "rank": 8, "decompose_factor": 4, "output_formats": ["kohya"]}
        ),
        "ranks and alphas by layer": Lesson(
            fields={"rank_pattern": {"attn2.to_k": 16, "attn2.to_v": 16}, "alpha_pattern": {"attn2.to_v": 8.0}}
        ),
        "feed-forward layers too": Lesson(
            fields={
                "target_modules": ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2"],
            }
        ),
        "convolutions too": Lesson(fields={"target_modules": ["to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2"]}),
        "chosen blocks": Lesson(fields={"lora_unet_blocks": ["mid_block", "up_blocks"]}),
        "text encoders too": Lesson(fields={"train_text_encoder": True, "text_encoder_lr": 5e-4}),
        "text encoders that stop": Lesson(
            fields={"train_text_encoder": True, "text_encoder_lr": 5e-4, "stop_text_encoder_training": 100}
        ),
        "new tokens": Lesson(
            fields={"train_text_encoder_ti": True, "instance_prompt": "a TOK shape", "text_encoder_lr": 1e-2}
        ),
        "EMA": Lesson(fields={"use_ema": True, "ema_decay": 0.98}),
        "from a LoRA of 75 steps": Lesson(fields={"max_train_steps": 75}, first="plain, 75 steps"),
        "min-SNR": Lesson(fields={"snr_gamma": 5.0}),
        "debiased": Lesson(fields={"debiased_estimation_loss": True}),
        "huber": Lesson(fields={"loss_type": "huber"}),
        "smooth l1, constant": Lesson(fields={"loss_type": "smooth_l1", "huber_schedule": "constant"}),
        "l1": Lesson(fields={"loss_type": "l1"}),
        "noise offset": Lesson(fields={"noise_offset": 0.05}),
        "zero terminal SNR": Lesson(fields={"rescale_betas_zero_snr": True}),
        "EDM style": Lesson(fields={"do_edm_style_training": True}),
        "timesteps 200 to 900": Lesson(fields={"min_timestep": 200, "max_timestep": 900}),
        "masked": Lesson(fields={"masked_loss": True}, transparent=True),
        "buckets": Lesson(
            fields={"enable_bucket": True, "bucket_reso_steps": 16, "min_bucket_reso": 32, "max_bucket_reso": 128},
            wide=True,
        ),
        "repeats": Lesson(repeats=(1, 3)),
        "flips": Lesson(fields={"random_flip": True}),
        "captions shuffled and left out": Lesson(
            fields={"shuffle_caption": True, "keep_tokens": 1, "caption_dropout_rate": 0.1}, captions="in parts"
        ),
        "8-bit AdamW": Lesson(fields={"optimizer": "adamw_8bit"}),
        # With beta2 0.999 and a falling rate it does not find its own rate in 150 steps.
        "Prodigy": Lesson(
            fields={"optimizer": "prodigy", "learning_rate": 1.0, "lr_scheduler": "constant", "adam_beta2": 0.99}
        ),
        "Adafactor": Lesson(fields={"optimizer": "adafactor"}),
        "schedule-free": Lesson(fields={"optimizer": "adamw_schedule_free", "lr_scheduler": "constant"}),
        "accumulated, 2 x 2": Lesson(fields={"train_batch_size": 2, "gradient_accumulation_steps": 2}),
        "linear with warm-up": Lesson(fields={"lr_scheduler": "linear", "lr_warmup_steps": 30}),
        "bf16": Lesson(fields={"mixed_precision": "bf16"}),
        "joint, one of two": Lesson(neighbors=("two-tone-house",)),
        "joint, one of four": Lesson(neighbors=("two-tone-house", "magenta-crescent", "green-cactus")),
    }
)
