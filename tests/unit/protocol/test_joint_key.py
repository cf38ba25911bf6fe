"""Who may share a batch with whom."""

import pytest

from giornata.protocol.node.joint import (
    OWN,
    RANK_CEILINGS,
    SHARED,
    joint_key,
    joint_key_of,
    rank_ceiling,
    why_solo,
)
from giornata.protocol.specs import TrainSpec


def spec_of(**fields: object) -> TrainSpec:
    return TrainSpec.model_validate({"model": "stabilityai/sdxl", "dataset": "ds_1", "seed": 5, **fields})


def test_no_field_is_named_twice_or_unknown() -> None:
    assert not OWN & SHARED
    assert set(TrainSpec.model_fields) >= OWN | SHARED


OWN_CHANGES = [
    {"rank": 3, "learning_rate": 1e-2, "lr_scheduler": "cosine", "max_train_steps": 7, "seed": 9},
    {"gradient_accumulation_steps": 3, "max_grad_norm": 0.3, "use_ema": True, "dataset": "ds_2"},
    {"snr_gamma": 5.0, "loss_type": "huber", "noise_offset": 0.1, "prediction_type": "v_prediction"},
    {"init_lora": "0" * 64, "masked_loss": True, "do_edm_style_training": True},
    {"optimizer": "adamw_schedule_free", "shuffle_caption": True, "checkpointing_steps": 10},
    {"target_modules": ("to_q", "to_out.0", "to_v", "to_k")},
    {"model_card": False, "report_to": ("tensorboard",)},
    {"report_to": ("wandb",), "wandb_project": "p", "wandb_api_key_secret": "W", "wandb_entity": "e"},
    {"sample_prompts": ("a toy",), "sample_steps": 9, "sample_guidance_scale": 3.0},
    {"compile": "off"},  # as a shared batch is in any case
    {"truncate_captions": True},
]


@pytest.mark.parametrize("changes", OWN_CHANGES)
def test_joint_key_ignores_options_that_batch_members_have_of_their_own(changes: dict[str, object]) -> None:
    assert joint_key(spec_of(**changes)) == joint_key(spec_of()) is not None


SHARED_CHANGES = [
    {"model": "another/sdxl"},
    {"revision": "main"},
    {"variant": "fp16"},
    {"resolution": 512},
    {"train_batch_size": 2},
    {"rank": 17},
    {"target_modules": ("to_q",)},
    {"lora_unet_blocks": ("mid_block",)},
    {"train_text_encoder": True},
    {"train_text_encoder": True, "text_encoder_target_modules": ("q_proj",)},
    {"mixed_precision": "no"},
    {"base_quantization": "int8"},
    {"gradient_checkpointing": True},
    {"with_prior_preservation": True, "class_prompt": "a toy"},
    {"max_token_length": 150},
    {"max_token_length": 225},
]


def test_joint_key_differs_by_options_that_batch_members_share() -> None:
    keys = [joint_key(spec_of(**changes)) for changes in [{}, *SHARED_CHANGES]]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optimizer": "adafactor"}, "optimizer adafactor"),
        ({"optimizer": "prodigy", "learning_rate": 1.0}, "optimizer prodigy"),
        ({"target_modules": ("to_q", "conv1")}, "conv1"),
        ({"target_modules": ("proj_in",)}, "proj_in"),
        ({"optimizer": "AdamW8bit"}, "optimizer adamw_8bit"),
        ({"enable_bucket": True}, "enable_bucket"),
        ({"use_dora": True}, "use_dora"),
        ({"adapter_type": "lokr", "output_formats": ("kohya",)}, "adapter_type"),
        ({"rank_pattern": {"to_q": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"to_q": 4.0}}, "alpha_pattern"),
        ({"train_text_encoder_ti": True}, "train_text_encoder_ti"),
        ({"share_batch": False}, "share_batch is false"),
        ({"validation_steps": 5, "sample_prompts": ("a toy",)}, "validation_steps is not offered"),
        ({"compile": "on"}, "compile on"),
    ],
)
def test_some_jobs_train_alone_and_are_told_why(changes: dict[str, object], said: str) -> None:
    spec = spec_of(**changes)
    assert joint_key(spec) is None
    (reason,) = why_solo(spec)
    assert said in reason


def test_job_with_option_unknown_to_shared_batch_trains_alone() -> None:
    class LaterSpec(TrainSpec):
        new_option: bool = False

    given = spec_of().model_dump()
    later = LaterSpec.model_validate(given | {"new_option": True})
    assert why_solo(LaterSpec.model_validate(given)) == ()
    assert why_solo(later) == ("new_option is not offered in a shared batch",)


def test_the_key_of_a_job_from_before_there_were_longer_captions_is_as_it_was() -> None:
    """Jobs wait in the queue with their keys while the server is replaced."""
    assert joint_key(spec_of()) == "feaabb55a36370313510f63fd436c11c"


def test_joint_key_of_other_kinds_than_train_is_none() -> None:
    assert joint_key_of("x-mine", {"anything": 1}) is None
    assert joint_key_of("train", spec_of().model_dump()) == joint_key(spec_of())


def test_the_ceiling_is_never_below_the_rank() -> None:
    assert [rank_ceiling(rank) for rank in (1, 16, 17, 64, 65, 512)] == [16, 16, 32, 64, 128, 512]
    assert RANK_CEILINGS[-1] == 512
