"""No seam shows: wherever a job was interrupted, and wherever it went on, its files have the same bytes.

Every second attempt gets its pictures in another order and under other names; every attempt is a workload of its
own that loads the model anew.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.train_studio import RecordingReporter, Studio, draw_pictures, spec_for

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
    "another objective": {
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "snr_gamma": 5.0,
        "loss_type": "smooth_l1",
        "noise_offset": 0.05,
        "min_timestep": 100,
        "train_batch_size": 2,
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
    "changing captions": {
        "instance_prompt": "a sks toy, red, on a table, at noon",
        "shuffle_caption": True,
        "keep_tokens": 1,
        "caption_dropout_rate": 0.3,
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
    "bf16 with text encoders": {"mixed_precision": "bf16", "train_text_encoder": True, "center_crop": True},
}
STOPS = [
    ("everything", 1),
    ("everything", 3),  # in the warm-up, and in the middle of an epoch
    ("everything", 11),
    ("bf16", 2),
    ("bf16", 5),  # an epoch's end
    ("bf16", 8),
    ("own class pictures", 4),
    ("another objective", 6),
    ("averaged, and text encoders that stop", 4),
    ("averaged, and text encoders that stop", 8),
    ("prodigy", 5),
    ("adafactor", 3),
    ("schedule-free", 7),
    ("changing captions", 5),
    ("Stable Diffusion 1.5", 4),
    ("Stable Diffusion 1.5, everything", 7),
    ("bf16 with text encoders", 7),
]


@pytest.fixture(scope="module")
def studios(tiny_folder: Path, tiny_sd15_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The studio of a job by its name, with the files of an uninterrupted run."""
    root = tmp_path_factory.mktemp("jobs")

    @cache
    def studio(name: str) -> tuple[Studio, dict[str, bytes]]:
        inputs = draw_pictures(root / "pictures", 5)
        if JOBS[name].get("class_dataset"):
            inputs += draw_pictures(root / "class", 4, first=50, role="class")
        model = tiny_sd15_folder if name.startswith("Stable Diffusion 1.5") else tiny_folder
        made = Studio(root=root / name, spec=spec_for(model, **JOBS[name]), inputs=inputs)
        whole = made.run()
        assert sorted(whole.metrics) == list(range(1, 13))
        assert set(whole.artifacts) == {"lora-kohya.safetensors", "pytorch_lora_weights.safetensors"}
        return made, whole.artifacts

    return studio


@pytest.mark.parametrize(("job", "stop_at"), STOPS)
def test_stopped_and_resumed_elsewhere(studios: Any, job: str, stop_at: int) -> None:
    studio, whole = studios(job)
    first = studio.run(RecordingReporter(wishes={stop_at: Wish.CHECKPOINT_AND_STOP}))
    assert first.lines == [f"stopped at {stop_at}"]
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
