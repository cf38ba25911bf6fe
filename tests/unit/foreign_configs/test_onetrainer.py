"""OneTrainer's configurations and concepts."""

import pytest

from giornata.protocol.specs import TrainSpec

PRESET = {
    "base_model_name": "stabilityai/stable-diffusion-xl-base-1.0",
    "batch_size": 4,
    "layer_filter_preset": "attn-mlp",
    "learning_rate": 0.0003,
    "model_type": "STABLE_DIFFUSION_XL_10_BASE",
    "output_model_destination": "models/lora.safetensors",
    "resolution": "1024",
    "training_method": "LORA",
    "unet": {"weight_dtype": "FLOAT_16"},
    "text_encoder": {"train": False, "weight_dtype": "FLOAT_16"},
    "text_encoder_2": {"train": False},
    "vae": {"weight_dtype": "FLOAT_32"},
}
MASKED = {"masked_training": True, "unmasked_weight": 0.0, "unmasked_probability": 0.0}
CONCEPT = {
    "path": "pictures/dog",
    "balancing": 3.0,
    "image": {"enable_random_flip": True, "enable_crop_jitter": False},
    "text": {"enable_tag_shuffling": True, "keep_tags_count": 2},
}


def _refused(reading):
    return {row.key for row in reading.refused}


def test_a_preset_and_what_the_tool_does_by_itself_become_one_job(read):
    reading = read(preset_json=PRESET)
    expected = {
        "alpha": 1.0,
        "rank": 16,
        "num_train_epochs": 100,
        "enable_bucket": True,
        "train_text_encoder": False,
        "lr_scheduler": "constant_with_warmup",
        "lr_warmup_steps": 200,
        "adam_weight_decay": 0.01,
        "gradient_checkpointing": True,
        "output_dtype": "float32",
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert "ff.net.2" in reading.fields["target_modules"]
    assert reading.refused == ()
    assert "output_model_destination" in reading.left_out
    TrainSpec.model_validate({**reading.fields, "dataset": "ds_0"})


def test_loss_noise_average_and_optimizer_are_taken_by_their_meaning(read):
    asked = {
        "loss_weight_fn": "MIN_SNR_GAMMA",
        "loss_weight_strength": 4.0,
        "offset_noise_weight": 0.03,
        "min_noising_strength": 0.1,
        "max_noising_strength": 0.9,
        "force_v_prediction": True,
        "rescale_noise_scheduler_to_zero_terminal_snr": True,
        "ema": "GPU",
        "ema_decay": 0.99,
        "ema_update_step_interval": 1,
        "optimizer": {"optimizer": "ADAMW_8BIT", "beta2": 0.99, "weight_decay": 0.0, "fused": True},
        "learning_rate_scheduler": "COSINE_WITH_HARD_RESTARTS",
        "learning_rate_cycles": 3.0,
        "clip_grad_norm": 0.5,
    }
    reading = read(preset_json=PRESET | asked)
    expected = {
        "snr_gamma": 4.0,
        "noise_offset": 0.03,
        "min_timestep": 100,
        "max_timestep": 900,
        "prediction_type": "v_prediction",
        "use_ema": True,
        "ema_decay": 0.99,
        "optimizer": "adamw_8bit",
        "adam_beta2": 0.99,
        "adam_weight_decay": 0.0,
        "lr_scheduler": "cosine_with_restarts",
        "lr_num_cycles": 3,
        "max_grad_norm": 0.5,
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert reading.refused == ()


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"training_method": "FINE_TUNE"}, "training_method"),
        ({"model_type": "FLUX_DEV_1"}, "model_type"),
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"timestep_distribution": "LOGIT_NORMAL"}, "timestep_distribution"),
        ({"mae_strength": 0.5}, "mae_strength"),
        ({"loss_weight_fn": "P2"}, "loss_weight_fn"),
        ({"learning_rate_scheduler": "REX"}, "learning_rate_scheduler"),
        ({"text_encoder": {"train": True}, "text_encoder_2": {"train": False}}, "text_encoder_2.train"),
        (
            {"masked_training": True, "unmasked_weight": 0.0, "unmasked_probability": 0.0},
            "normalize_masked_area_loss",
        ),
        ({"something_new": 7}, "something_new"),
    ],
)
def test_onetrainer_option_without_equivalent_is_refused_by_name(read, asked, key):
    assert _refused(read(preset_json=PRESET | asked)) == {key}


def test_an_adafactor_that_is_told_what_it_does_anyway_is_taken(read):
    same = {"optimizer": "ADAFACTOR", "eps": 1e-30, "eps2": 1e-3, "decay_rate": -0.8, "weight_decay": 0.1}
    reading = read(preset_json=PRESET | {"optimizer": same})
    assert reading.refused == ()
    assert (reading.fields["optimizer"], reading.fields["adam_weight_decay"]) == ("adafactor", 0.1)
    assert "adam_epsilon" not in reading.fields
    TrainSpec.model_validate({**reading.fields, "dataset": "ds_0"})


def test_concepts_become_folders_and_what_they_share_becomes_the_jobs(read):
    reading = read(preset_json=PRESET, concepts_json=[CONCEPT, {"path": "off", "enabled": False}])
    (folder,) = reading.subsets
    assert (str(folder.path), folder.repeats) == ("pictures/dog", 3)
    fields = reading.fields
    assert (fields["random_flip"], fields["center_crop"], fields["keep_tokens"]) == (True, True, 2)
    assert reading.refused == ()


def test_concepts_that_differ_or_ask_for_more_are_refused(read):
    other = {"path": "b", "balancing": 0.5, "image": {"enable_random_rotate": True}, "text": {}}
    reading = read(preset_json=PRESET | {"concepts": [CONCEPT, other]})
    assert _refused(reading) == {
        "concepts.image.enable_random_flip",
        "concepts.image.enable_crop_jitter",
        "concepts.image.enable_random_rotate",
        "concepts.text.enable_tag_shuffling",
        "concepts.text.keep_tags_count",
        "concepts.balancing",
    }
