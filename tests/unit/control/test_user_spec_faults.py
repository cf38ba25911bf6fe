"""Faults of a spec, in words that name its fields."""

from typing import Any

import pytest
from pydantic import AliasChoices

from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.foreign_names import NOT_OFFERED

PRIOR = {"with_prior_preservation": True, "prior_prediction": True, "class_prompt": "a toy"}
GOOD = {"model": "some/model", "dataset": "ds_0", "instance_prompt": "sks"}


def found(**spec: object) -> list[str]:
    parsed, faults = parse_spec("train", GOOD | spec)
    assert (parsed is None) == bool(faults)
    return [str(fault) for fault in faults]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"network_dimm": 4}, "spec.network_dimm: unknown field (did you mean network_dim?)"),
        ({"zzz": 4}, "spec.zzz: unknown field (remove it)"),
        ({"network_droput": 0.1}, "spec.network_droput: unknown field (did you mean network_dropout?)"),
        # Near by its letters, and nothing that anybody meant.
        ({"clip_skips": 2}, "spec.clip_skips: unknown field (remove it)"),
        ({"clip_skip": 2}, "spec.clip_skip: is not a field here (captions are encoded as"),
        ({"train_data_dir": "x"}, "spec.train_data_dir: is not a field here (the pictures come from the folder"),
        ({"cache_latents": True}, "spec.cache_latents: is not a field here (latents"),
        ({"resolution": "512,768"}, "spec.resolution: one side for a square"),
        ({"resolution": 1001}, "spec.resolution: input should be a multiple of 8; it is 1001"),
        ({"mixed_precision": "fp8"}, "spec.mixed_precision: input should be 'no' or 'bf16'; it is 'fp8'"),
        ({"lr_scheduler": "cosin"}, "spec.lr_scheduler: "),
        ({"target_modules": []}, "spec.target_modules: "),
        ({"output_formats": ["kohya", "ckpt"]}, "spec.output_formats.1: "),
        ({"seed": -1}, "spec.seed: "),
        (
            {"rank": 4, "network_dim": 8},
            "spec.network_dim: the same field is given under another name too (give it once)",
        ),
        ({"min_snr_gamma": 5, "debiased_estimation_loss": True}, "spec.snr_gamma: snr_gamma and debiased"),
        ({"zero_terminal_snr": True, "prediction_type": "epsilon"}, "spec.rescale_betas_zero_snr: "),
        ({"min_timestep": 500, "max_timestep": 500}, "spec.min_timestep: min_timestep is not below max_timestep"),
        ({"optimizer": "prodigy"}, "spec.learning_rate: learning_rate is a factor"),
        ({"optimizer": "AdamWScheduleFree", "lr_scheduler": "cosine"}, "spec.lr_scheduler: lr_scheduler must be"),
        ({"optimizer": "sgd"}, "spec.optimizer: input should be 'adamw', 'adamw_8bit', 'prodigy', 'adafactor'"),
        ({"sample_batch_size": 4}, "spec.sample_batch_size: is not a field here (class pictures are drawn one at"),
        (
            {"validation_prompt": "sks"},
            "spec.validation_prompt: is not a field here (use sample_prompts, one for each image; validation_steps",
        ),
        (
            {"validation_epochs": 50},
            "spec.validation_epochs: is not a field here (sample images during training",
        ),
        ({"sample_every_n_epochs": 5}, "spec.sample_every_n_epochs: is not a field here (sample images during"),
        (
            {"sample_every_n_steps": 50},
            "spec.validation_steps: validation_steps has no effect without sample_prompts",
        ),
        (
            {"validation_steps": 1, "sample_prompts": ["sks"], "max_train_steps": 102},
            "spec.validation_steps: validation_steps 1 makes more than 100 sheets in 102 steps (use a larger number)",
        ),
        ({"sample_steps": 9}, "spec.sample_steps: sample_steps has no effect without sample_prompts"),
        ({"sample_guidance_scale": 9}, "spec.sample_guidance_scale: sample_guidance_scale has no effect without"),
        ({"sample_prompts": "prompts.txt"}, "spec.sample_prompts: sample_prompts must be the prompts"),
        ({"sample_prompts": ["sks --n bad --s 9"]}, "spec.sample_prompts: sample_prompts must be prompts without"),
        ({"sample_prompts": ["sks"] * 9}, "spec.sample_prompts: "),
        ({"sample_prompts": [""]}, "spec.sample_prompts.0: "),
        ({"wandb_api_key": "0123456789"}, "spec.wandb_api_key: is not a field here (a spec is stored and shown, so"),
        ({"wandb_run_name": "a"}, "spec.wandb_run_name: wandb_run_name has no effect without report_to"),
        ({"report_to": "wandb", "wandb_project": "a/b"}, "spec.wandb_project: "),
        ({"report_to": "comet"}, "spec.report_to.0: input should be 'tensorboard' or 'wandb'"),
        (
            {"num_train_epochs": 2, "max_train_steps": 9},
            "spec.num_train_epochs: num_train_epochs conflicts with",
        ),
        (
            {"use_8bit_adam": True, "optimizer": "adafactor"},
            "spec.use_8bit_adam: use_8bit_adam conflicts with",
        ),
        (
            {"fp8_base": True, "base_quantization": "int8"},
            "spec.fp8_base: fp8_base conflicts with base_quantiz",
        ),
        ({"do_edm_style_training": True, "min_snr_gamma": 5}, "spec.snr_gamma: snr_gamma conflicts with"),
        ({"token_abstraction": "cat"}, "spec.token_abstraction: token_abstraction has no effect without"),
        ({"keep_tokens": 2}, "spec.keep_tokens: keep_tokens has no effect without shuffle_caption"),
        ({"bucket_reso_steps": 32}, "spec.bucket_reso_steps: bucket_reso_steps has no effect without enable_bucket"),
        ({"min_bucket_reso": 64}, "spec.min_bucket_reso: min_bucket_reso has no effect without enable_bucket"),
        ({"enable_bucket": True, "resolution": 1000}, "spec.resolution: resolution is not a multiple of bucket_reso"),
        ({"enable_bucket": True, "max_bucket_reso": 2000}, "spec.max_bucket_reso: max_bucket_reso is not a multi"),
        ({"enable_bucket": True, "resolution": 128}, "spec.min_bucket_reso: min_bucket_reso is above resolution"),
        (
            {"enable_bucket": True, "max_bucket_reso": 512},
            "spec.max_bucket_reso: max_bucket_reso is below resolution",
        ),
        ({"prior_prediction": True}, "spec.prior_prediction: prior_prediction has no effect without with_prior"),
        ({**PRIOR, "class_dataset": "ds_1"}, "spec.class_dataset: class_dataset conflicts with"),
        ({**PRIOR, "num_class_images": 9}, "spec.num_class_images: num_class_images has no effect with prior"),
        ({**PRIOR, "class_prompt": None}, "spec.class_prompt: class_prompt is required with with_prior_preservation"),
    ],
)
def test_each_fault_says_where_and_what(spec: dict[str, object], said: str) -> None:
    (fault,) = found(**spec)
    assert fault.startswith(said)


def test_faults_come_all_at_once() -> None:
    assert len(found(rank=0, resolution=3, adam_beta1=2, nonsense=1, seed=-4)) == 5


TOKENS = {"train_text_encoder_ti": True, "instance_prompt": "a photo of TOK"}
LOKR = {"adapter_type": "lokr", "output_formats": ("kohya",)}
RESTARTS = {"lr_scheduler": "cosine_with_restarts"}
WANDB = {"report_to": ("wandb",)}
SHA256 = "0" * 64
# alias: (field, value, what it needs beside it)
ALIASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "model": ("pretrained_model_name_or_path", "some/model", {}),
    "vae": ("pretrained_vae_model_name_or_path", "a/vae", {}),
    "proportion_empty_prompts": ("caption_dropout_rate", 0.1, {}),
    "caption_extention": ("caption_extension", ".caption", {}),
    "flip_aug": ("random_flip", True, {}),
    "alpha_mask": ("masked_loss", True, {}),
    "network_module": ("adapter_type", "lora", {}),
    "algo": ("adapter_type", "lokr", {"output_formats": ("kohya",)}),
    "network_dim": ("rank", 4, {}),
    "network_alpha": ("alpha", 2.0, {}),
    "dora_wd": ("use_dora", True, {}),
    "factor": ("decompose_factor", 4, LOKR),
    "network_weights": ("init_lora", SHA256, {}),
    "num_vectors_per_token": ("num_new_tokens_per_abstraction", 3, TOKENS),
    "token_string": ("token_abstraction", ("SKS",), TOKENS | {"instance_prompt": "a photo of SKS"}),
    "init_word": ("initializer_concept", "dog", TOKENS),
    "initializer_token": ("initializer_concept", "dog", TOKENS),
    "min_snr_gamma": ("snr_gamma", 5.0, {}),
    "zero_terminal_snr": ("rescale_betas_zero_snr", True, {"prediction_type": "v_prediction"}),
    "max_train_epochs": ("num_train_epochs", 3, {}),
    "optimizer_type": ("optimizer", "adafactor", {}),
    "unet_lr": ("learning_rate", 1e-3, {}),
    "lr_scheduler_num_cycles": ("lr_num_cycles", 3, RESTARTS),
    "lr_scheduler_power": ("lr_power", 2.0, {"lr_scheduler": "polynomial"}),
    "block_lr": ("block_learning_rates", {"mid_block": 1e-4}, {}),
    "input_perturbation": ("ip_noise_gamma", 0.1, {}),
    "torch_compile": ("compile", "on", {}),
    "save_every_n_steps": ("checkpointing_steps", 50, {}),
    "checkpoints_total_limit": ("checkpoints_keep_latest", 3, {}),
    "sample_every_n_steps": ("validation_steps", 50, {"sample_prompts": ("a toy",)}),
    "log_with": ("report_to", ("tensorboard",), {}),
    "log_tracker_name": ("wandb_project", "mine", WANDB),
    "tracker_project_name": ("wandb_project", "mine", WANDB),
    "tracker_run_name": ("wandb_run_name", "first", WANDB),
}
FLAGS = {"fp8_base_unet", "use_8bit_adam", "fp8_base"}
"""Ways to say another field, with tests of their own."""


def test_a_plain_spec_has_no_fault() -> None:
    assert found() == []


@pytest.mark.parametrize("alias", ALIASES)
def test_spec_aliases_of_other_trainers_are_stored_under_our_field_names(alias: str) -> None:
    name, value, beside = ALIASES[alias]
    given = {key: each for key, each in GOOD.items() if alias != "model" or key != "model"}
    parsed, faults = parse_spec("train", given | beside | {alias: value})
    assert parsed is not None, faults
    told = parsed.model_dump()
    assert told[name] == value
    assert alias not in told


def test_every_alias_is_tried() -> None:
    choices = (field.validation_alias for field in TrainSpec.model_fields.values())
    names = {name for each in choices if isinstance(each, AliasChoices) for name in each.choices}
    assert names - TrainSpec.model_fields.keys() - FLAGS == ALIASES.keys()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"huber_c": 0.2}, "huber_c"),
        ({"loss_type": "l1", "huber_schedule": "constant"}, "huber_schedule"),
        ({"ema_decay": 0.9}, "ema_decay"),
        ({"lr_scheduler": "cosine", "lr_num_cycles": 2}, "lr_num_cycles"),
        ({"lr_power": 2.0}, "lr_power"),
        ({"text_encoder_lr": 1e-4}, "text_encoder_lr"),
        ({"text_encoder_target_modules": ("q_proj",)}, "text_encoder_target_modules"),
        ({"stop_text_encoder_training": 5}, "stop_text_encoder_training"),
        ({"caption_separator": ";"}, "caption_separator"),
        ({"bucket_no_upscale": True}, "bucket_no_upscale"),
        ({"prior_loss_weight": 0.5}, "prior_loss_weight"),
        ({"num_class_images": 5}, "num_class_images"),
        (
            {
                "with_prior_preservation": True,
                "class_prompt": "a toy",
                "class_dataset": "ds_1",
                "num_class_images": 5,
            },
            "num_class_images",
        ),
        ({"optimizer": "adafactor", "adam_beta1": 0.8}, "adam_beta1"),
        ({"optimizer": "adafactor", "adam_beta2": 0.99}, "adam_beta2"),
        ({"optimizer": "adafactor", "adam_epsilon": 1e-6}, "adam_epsilon"),
        ({"decompose_both": True}, "decompose_both"),
    ],
)
def test_spec_field_without_effect_is_refused_unless_at_its_default(spec: dict[str, Any], name: str) -> None:
    (fault,) = found(**spec)
    assert fault.startswith(f"spec.{name}: {name} has no effect with")
    default = TrainSpec.model_fields[name].default
    assert found(**spec | {name: default}) == []


@pytest.mark.parametrize("given", ["512,512", " 512, 512", [512, 512], "512"])
def test_a_square_may_be_said_by_both_its_sides(given: object) -> None:
    parsed, _ = parse_spec("train", GOOD | {"resolution": given})
    assert parsed is not None and parsed.model_dump()["resolution"] == 512


def test_no_name_is_both_a_field_and_not_offered() -> None:
    assert not NOT_OFFERED.keys() & (TrainSpec.model_fields.keys() | ALIASES.keys())


def test_missing_required_spec_fields_are_reported_with_hints() -> None:
    _, faults = parse_spec("train", {})
    assert {fault.where for fault in faults} == {"spec.pretrained_model_name_or_path", "spec.dataset"}
    assert all(fault.message == "is required" and fault.hint for fault in faults)


def test_a_spec_may_be_as_deep_as_its_sender_likes() -> None:
    deep: dict[str, object] = {"x": "\x00"}
    for _ in range(5000):
        deep = {"x": deep}
    _, faults = parse_spec("x-mine", {"deep": deep})
    assert len(faults) == 1


def test_prompts_may_be_the_lines_of_kohyas_file() -> None:
    parsed, faults = parse_spec("train", GOOD | {"sample_prompts": "# mine\n a sks dog, red \n\n a dog\n"})
    assert faults == []
    assert parsed.model_dump()["sample_prompts"] == ("a sks dog, red", "a dog")


def test_a_key_in_a_spec_is_not_repeated_to_anybody() -> None:
    assert "0123456789" not in str(found(wandb_api_key="0123456789"))
