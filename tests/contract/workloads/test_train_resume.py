"""No seam shows: wherever a job was interrupted, and wherever it went on, its files have the same bytes.

Every second attempt gets its pictures in another order and under other names; every attempt is a workload of its
own that loads the model anew.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kernels import needs_compiler
from tests.fixtures.train_studio import RecordingReporter, Studio, draw_pictures, input_file, spec_for

from giornata.diffusion.formats import FILE_NAMES
from giornata.engine.workload import Wish

JOBS: dict[str, dict[str, Any]] = {
    # 5 pictures: at batch 1 an epoch ends after step 5, at 2 x 2 in the middle of a batch
    "everything": {
        "train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "with_prior_preservation": True,
        "class_prompt": "a toy",
        "num_class_images": 2,
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 5,
    },
    "bf16": {"mixed_precision": "bf16", "output_dtype": "float16", "lr_scheduler": "linear"},
    "own class pictures": {
        "with_prior_preservation": True,
        "class_prompt": "a toy",
        "class_dataset": "ds_2",
        "train_batch_size": 3,
        "lr_scheduler": "polynomial",
        "lr_power": 2.0,
        "gradient_checkpointing": True,
        "target_modules": ("to_q", "to_out.0", "ff.net.0.proj"),
        "alpha": 1.5,
    },
    "selective gradient checkpointing": {
        "gradient_checkpointing": "selective",
        "mixed_precision": "bf16",
        "report_to": ("tensorboard",),
    },
    "another objective": {
        "sample_prompts": ("a photo of a sks toy", "a toy"),
        "sample_steps": 2,
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "snr_gamma": 5.0,
        "loss_type": "smooth_l1",
        "noise_offset": 0.05,
        "min_timestep": 100,
        "train_batch_size": 2,
    },
    "edm style": {
        "do_edm_style_training": True,
        "prediction_type": "v_prediction",
        "gradient_accumulation_steps": 2,
        "lr_scheduler": "cosine",
    },
    "new tokens": {
        "train_text_encoder_ti": True,
        "instance_prompt": "a photo of TOK",
        "text_encoder_lr": 1e-3,
        "mixed_precision": "bf16",
        "shuffle_caption": True,
    },
    "two kinds of new tokens, and text encoders": {
        "instance_prompt": "a photo of TOK in the style of PAINT",
        "train_text_encoder_ti": True,
        "train_text_encoder_ti_frac": 0.8,
        "token_abstraction": "TOK, PAINT",
        "num_new_tokens_per_abstraction": 3,
        "initializer_concept": "dog",
        "train_text_encoder": True,
        "stop_text_encoder_training": 4,
        "text_encoder_lr": 1e-3,
        "use_ema": True,
        "gradient_accumulation_steps": 2,
    },
    "averaged, and text encoders that stop": {
        "use_ema": True,
        "ema_decay": 0.9,
        "use_rslora": True,
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "stop_text_encoder_training": 6,
    },
    "prodigy": {"optimizer": "Prodigy", "learning_rate": 1.0, "lr_scheduler": "cosine"},
    "adafactor": {"optimizer_type": "Adafactor", "train_text_encoder": True},
    "schedule-free": {"optimizer": "adamw_schedule_free", "mixed_precision": "bf16"},
    "eight bits": {"use_8bit_adam": True, "rank": 64, "lr_scheduler": "cosine", "train_text_encoder": True},
    "changing captions": {
        "instance_prompt": "a sks toy, red, on a table, at noon",
        "shuffle_caption": True,
        "keep_tokens": 1,
        "caption_dropout_rate": 0.3,
    },
    "dora, layer by layer": {
        "use_dora": True,
        "mixed_precision": "bf16",
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "text_encoder_target_modules": ("q_proj", "out_proj", "fc1"),
        "target_modules": ("to_q", "to_out.0", "conv1"),
        "rank_pattern": {"conv1": 4, r"text_encoder(_2)?\..*": 1},
        "alpha_pattern": {"to_q": 8.0},
        "lora_unet_blocks": ("down_blocks", "up_blocks.0.attentions.1"),
    },
    "lokr": {
        "adapter_type": "lokr",
        "decompose_both": True,
        "decompose_factor": 8,
        "rank": 1,
        "target_modules": ("to_q", "to_out.0", "conv1"),
        "train_text_encoder": True,
        "output_formats": ("kohya",),
    },
    "from a lora": {"init_lora": "a file", "rank": 4, "use_dora": True, "use_ema": True},
    # a micro-batch is of one size, and its class pictures of another
    "buckets and repeats": {
        "enable_bucket": True,
        "bucket_reso_steps": 16,
        "min_bucket_reso": 32,
        "max_bucket_reso": 128,
        "train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "with_prior_preservation": True,
        "class_prompt": "a toy",
        "class_dataset": "ds_2",
    },
    "masks and the base's own prediction": {
        "alpha_mask": True,
        "with_prior_preservation": True,
        "prior_prediction": True,
        "class_prompt": "a toy",
        "train_batch_size": 2,
        "mixed_precision": "bf16",
        "caption_dropout_rate": 0.3,
    },
    "the base's own prediction, and text encoders": {
        "with_prior_preservation": True,
        "prior_prediction": True,
        "class_prompt": "a toy",
        "prior_loss_weight": 0.5,
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "stop_text_encoder_training": 6,
        "gradient_checkpointing": True,
    },
    "Stable Diffusion 1.5, new tokens": {
        "train_text_encoder_ti": True,
        "text_encoder_lr": 1e-2,
        "instance_prompt": "a photo of TOK",
        "mixed_precision": "bf16",
    },
    "Stable Diffusion 1.5": {"train_batch_size": 2, "snr_gamma": 5.0, "use_ema": True, "ema_decay": 0.9},
    "Stable Diffusion 1.5, everything": {
        "gradient_accumulation_steps": 2,
        "with_prior_preservation": True,
        "class_prompt": "a toy",
        "num_class_images": 2,
        "train_text_encoder": True,
        "text_encoder_lr": 1e-3,
        "mixed_precision": "bf16",
        "target_modules": ("to_q", "to_out.0", "proj_in", "conv1"),
        "gradient_checkpointing": True,
    },
    "a base of whole numbers": {"base_quantization": "int8", "train_text_encoder": True, "text_encoder_lr": 1e-3},
    "a base of 8-bit floats": {
        "fp8_base": True,
        "mixed_precision": "bf16",
        "use_dora": True,
        "target_modules": ("to_q", "conv1"),
        "gradient_checkpointing": True,
        "with_prior_preservation": True,
        "prior_prediction": True,
        "class_prompt": "a toy",
    },
    "compiled": {"compile": "on", "gradient_checkpointing": "selective", "base_quantization": "int8"},
    "bf16 with text encoders": {"mixed_precision": "bf16", "train_text_encoder": True, "center_crop": True},
}
WIDE_AND_TALL = {"sizes": ((64, 70), (64, 130), (130, 60), (64, 131), (90, 60)), "repeats": (1, 3)}
PICTURES: dict[str, dict[str, Any]] = {
    "buckets and repeats": WIDE_AND_TALL,
    "masks and the base's own prediction": {"masked": True, "repeats": (2, 1)},
}
STOPS = [
    ("everything", 1),
    ("everything", 3),  # in the warm-up, and in the middle of an epoch
    ("everything", 11),
    ("bf16", 2),
    ("bf16", 5),  # an epoch's end
    ("bf16", 8),
    ("own class pictures", 4),
    ("selective gradient checkpointing", 3),
    ("another objective", 6),
    ("edm style", 5),
    ("new tokens", 3),
    ("new tokens", 8),  # they have stopped at 6
    ("two kinds of new tokens, and text encoders", 5),
    ("two kinds of new tokens, and text encoders", 9),
    ("averaged, and text encoders that stop", 4),
    ("averaged, and text encoders that stop", 8),
    ("prodigy", 5),
    ("adafactor", 3),
    ("schedule-free", 7),
    ("eight bits", 5),
    ("changing captions", 5),
    ("dora, layer by layer", 4),
    ("dora, layer by layer", 9),
    ("lokr", 5),
    ("lokr", 12),
    ("from a lora", 3),
    ("buckets and repeats", 1),
    ("buckets and repeats", 4),
    ("buckets and repeats", 9),
    ("masks and the base's own prediction", 3),
    ("masks and the base's own prediction", 8),
    ("the base's own prediction, and text encoders", 4),
    ("the base's own prediction, and text encoders", 7),
    ("Stable Diffusion 1.5, new tokens", 3),
    ("Stable Diffusion 1.5, new tokens", 8),
    ("Stable Diffusion 1.5", 4),
    ("Stable Diffusion 1.5, everything", 7),
    ("a base of whole numbers", 5),
    ("a base of 8-bit floats", 4),
    pytest.param("compiled", 5, marks=[needs_compiler, pytest.mark.timeout(1200)]),
    ("bf16 with text encoders", 7),
]


@pytest.fixture(scope="module")
def studios(tiny_folder: Path, tiny_sd15_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The studio of a job by its name, with the files of an uninterrupted run."""
    root = tmp_path_factory.mktemp("jobs")

    @cache
    def studio(name: str) -> tuple[Studio, dict[str, bytes]]:
        shapes = PICTURES.get(name, {})
        inputs = draw_pictures(root / name / "pictures", 5, **shapes)
        if JOBS[name].get("class_dataset"):
            inputs += draw_pictures(root / name / "class", 4, first=50, role="class", **shapes)
        fields = dict(JOBS[name])
        if fields.get("init_lora"):
            path = root / "start.safetensors"
            path.write_bytes(studio("bf16")[1]["lora-kohya.safetensors"])
            inputs = [*inputs, input_file(path, role="init_lora")]
            fields["init_lora"] = inputs[-1].sha256
        model = tiny_sd15_folder if name.startswith("Stable Diffusion 1.5") else tiny_folder
        made = Studio(root=root / name, spec=spec_for(model, **fields), inputs=inputs)
        whole = made.run()
        assert sorted(whole.metrics) == list(range(1, 13))
        formats = fields.get("output_formats", ("kohya", "diffusers"))
        embeddings = {"embeddings.safetensors"} if fields.get("train_text_encoder_ti") else set()
        embeddings |= {"samples.png"} if fields.get("sample_prompts") else set()
        assert set(whole.artifacts) >= embeddings | {"README.md", *(FILE_NAMES[kind] for kind in formats)}
        return made, whole.artifacts

    return studio


@pytest.mark.parametrize(("job", "stop_at"), STOPS)
def test_stopped_and_resumed_elsewhere(studios: Any, job: str, stop_at: int) -> None:
    studio, whole = studios(job)
    first = studio.run(RecordingReporter(wishes={stop_at: Wish.CHECKPOINT_AND_STOP}))
    assert first.lines[-1] == f"stopped at {stop_at}"
    assert not first.artifacts
    second = studio.run(resume=studio.resume_point(first, stop_at))
    assert sorted(second.metrics) == list(range(stop_at + 1, 13))
    assert second.artifacts == whole
    assert not second.notices


class Killed(BaseException):
    """What SIGKILL would do, as far as the next attempt can tell."""


class DoomedReporter(RecordingReporter):
    """Dies when step 10 is done."""

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        super().progress(step, total, metrics)
        if step == 10:
            raise Killed


@pytest.mark.parametrize("resume_at", [4, 8])
def test_killed_and_resumed_from_what_there_was(studios: Any, resume_at: int) -> None:
    """Also from a checkpoint before the last: two steps or six are done again, to the same effect."""
    studio, whole = studios("bf16")
    every_four = studio.spec | {"checkpointing_steps": 4}
    reporter = DoomedReporter()
    with pytest.raises(Killed):
        studio.run(reporter, spec=every_four)
    assert sorted(reporter.checkpoints) == [4, 8]
    assert studio.run(spec=every_four, resume=studio.resume_point(reporter, resume_at)).artifacts == whole


def test_interrupted_again_and_again(studios: Any) -> None:
    studio, whole = studios("own class pictures")
    reporter, step = studio.run(RecordingReporter(wishes={1: Wish.CHECKPOINT_AND_STOP})), 1
    for next_step in (2, 6, 10):
        wishes = {next_step: Wish.CHECKPOINT_AND_STOP}
        reporter = studio.run(RecordingReporter(wishes=wishes), resume=studio.resume_point(reporter, step))
        step = next_step
    assert studio.run(resume=studio.resume_point(reporter, step)).artifacts == whole


def test_when_checkpoints_are_written_changes_nothing(studios: Any) -> None:
    """Not even the checkpoints: their bytes are a function of the step."""
    studio, whole = studios("bf16")
    one = studio.run(RecordingReporter(wishes={3: Wish.CHECKPOINT, 4: Wish.CHECKPOINT, 9: Wish.CHECKPOINT}))
    other = studio.run(RecordingReporter(wishes={9: Wish.CHECKPOINT}))
    assert one.artifacts == other.artifacts == whole
    assert set(one.checkpoint_bytes) == {3, 4, 9, 12}
    assert set(other.checkpoint_bytes) == {9, 12}
    assert one.checkpoint_bytes[9] == other.checkpoint_bytes[9]
    assert one.checkpoint_bytes[12] == other.checkpoint_bytes[12]


def test_resumed_after_the_last_step_only_exports(studios: Any) -> None:
    studio, whole = studios("everything")
    first = studio.run(RecordingReporter(wishes={12: Wish.CHECKPOINT_AND_STOP}))
    assert not first.artifacts
    second = studio.run(resume=studio.resume_point(first, 12))
    assert second.artifacts == whole
    assert not second.metrics
    assert not second.notices
    assert not second.puts  # no class pictures are drawn for nothing


def test_another_seed_gives_another_result(studios: Any) -> None:
    studio, whole = studios("bf16")
    other = studio.run(spec=studio.spec | {"seed": 43})
    for name, content in other.artifacts.items():
        assert content != whole[name]
