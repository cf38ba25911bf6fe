"""sd-scripts' options: names, units, and what the scripts do where a file says nothing."""

import pytest

from giornata.protocol.specs import TrainSpec

LEAST = 'pretrained_model_name_or_path = "a/base-xl"\nnetwork_module = "networks.lora"\n'
CONVOLUTIONS = {"conv1", "conv2", "downsamplers.0.conv", "upsamplers.0.conv"}


def _refused(reading):
    return {row.key for row in reading.refused}


def test_a_file_that_says_little_gets_the_scripts_defaults_and_not_ours(read):
    fields = read(run_toml=LEAST).fields
    theirs = {
        "rank": 4,
        "alpha": 1.0,
        "learning_rate": 2e-6,
        "text_encoder_lr": 2e-6,
        "train_text_encoder": True,
        "max_train_steps": 1600,
        "adam_weight_decay": 0.01,
        "center_crop": True,
        "mixed_precision": "no",
        "output_dtype": "float32",
    }
    assert {name: fields[name] for name in theirs} == theirs
    assert {"proj_in", "proj_out", "ff.net.0.proj", "ff.net.2", "to_q"} <= set(fields["target_modules"])
    assert {"fc1", "fc2"} <= set(fields["text_encoder_target_modules"])
    TrainSpec.model_validate({**fields, "dataset": "ds_0"})


def test_sections_mean_nothing_and_keys_are_taken_by_their_meaning(read):
    reading = read(
        run_toml=LEAST.replace("network_module", "[Network]\nnetwork_module")
        + """
network_dim = 32
network_alpha = 16
[Optimizer]
optimizer_type = "AdamW8bit"
optimizer_args = ["weight_decay=0.1", "betas=0.9,0.99"]
unet_lr = 2e-4
text_encoder_lr = 1e-5
max_grad_norm = 0
[Rest]
min_snr_gamma = 5
noise_offset = 0.05
mixed_precision = "fp16"
save_precision = "bf16"
save_every_n_steps = 200
v_parameterization = true
zero_terminal_snr = true
cache_latents = true
clip_skip = 2
output_dir = "out"
max_data_loader_n_workers = 4
"""
    )
    expected = {
        "rank": 32,
        "alpha": 16.0,
        "optimizer": "adamw_8bit",
        "adam_weight_decay": 0.1,
        "adam_beta2": 0.99,
        "learning_rate": 2e-4,
        "text_encoder_lr": 1e-5,
        "max_grad_norm": 1e6,
        "snr_gamma": 5.0,
        "noise_offset": 0.05,
        "mixed_precision": "bf16",
        "output_dtype": "bfloat16",
        "checkpointing_steps": 200,
        "checkpoints_keep_every": 200,
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert reading.refused == ()
    assert {"cache_latents", "clip_skip", "output_dir", "max_data_loader_n_workers"} <= set(reading.left_out)
    TrainSpec.model_validate({**reading.fields, "dataset": "ds_0"})


def test_epochs_go_before_steps_as_in_the_scripts(read):
    fields = read(run_toml=LEAST + "max_train_epochs = 10\nmax_train_steps = 99\n").fields
    assert fields["num_train_epochs"] == 10
    assert "max_train_steps" not in fields


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('lr_scheduler = "cosine"\nlr_warmup_steps = 50', 50),
        ('lr_scheduler = "cosine"\nlr_warmup_steps = 0.1\nmax_train_steps = 400', 40),
        ('lr_scheduler = "constant"\nlr_warmup_steps = 50', None),
    ],
)
def test_warm_up_is_a_number_of_steps_or_a_part_of_them_and_a_constant_rate_has_none(read, lines, expected):
    assert read(run_toml=LEAST + lines).fields.get("lr_warmup_steps") == expected


def test_a_part_of_unknown_steps_is_refused(read):
    lines = 'lr_scheduler = "cosine"\nlr_warmup_steps = 0.1\nmax_train_epochs = 2'
    assert _refused(read(run_toml=LEAST + lines)) == {"lr_warmup_steps"}


@pytest.mark.parametrize(
    ("lines", "trained"),
    [
        ("network_train_unet_only = true\ntext_encoder_lr = 1e-4", False),
        ("text_encoder_lr = 0", False),
        ("text_encoder_lr = [1e-5, 1e-5]", True),
    ],
)
def test_text_encoders_are_trained_unless_told_not_to(read, lines, trained):
    fields = read(run_toml=LEAST + lines).fields
    assert fields["train_text_encoder"] is trained
    assert ("text_encoder_lr" in fields) is trained


def test_text_encoders_have_a_rate_each(read):
    reading = read(run_toml=LEAST + "text_encoder_lr = [1e-5, 2e-5]")
    assert reading.refused == ()
    assert list(reading.fields["text_encoder_learning_rates"]) == [1e-5, 2e-5]
    assert "text_encoder_lr" not in reading.fields


def test_kohya_option_that_changes_the_result_is_refused_unless_off(read):
    on = "color_aug = true\nfull_bf16 = true\nadaptive_noise_scale = 0.1\nmystery = 3\nnetwork_alpha = 9999\n"
    reading = read(run_toml=LEAST + on)
    assert _refused(reading) == {"color_aug", "full_bf16", "adaptive_noise_scale", "mystery", "network_alpha"}
    off = read(run_toml=LEAST + "color_aug = false\nfull_bf16 = false\nadaptive_noise_scale = 0\nmystery = false\n")
    assert off.refused == ()
    assert {"color_aug", "mystery"} <= set(off.left_out)


def test_clip_skip_is_refused_for_what_may_be_stable_diffusion_15(read):
    assert _refused(read(run_toml=LEAST.replace("base-xl", "base") + "clip_skip = 2")) == {"clip_skip"}


def test_convolutions_have_a_rank_and_an_alpha_of_their_own(read):
    lines = 'network_dim = 16\nnetwork_alpha = 8\nnetwork_args = ["conv_dim=4", "conv_alpha=1"]'
    fields = read(run_toml=LEAST + lines).fields
    assert set(fields["target_modules"]) >= {*CONVOLUTIONS, "conv_shortcut", "time_emb_proj"}
    assert fields["rank_pattern"] == dict.fromkeys(CONVOLUTIONS, 4)
    assert fields["alpha_pattern"] == dict.fromkeys(CONVOLUTIONS, 1)


def test_lycoris_adapts_by_its_preset_and_kind(read):
    lycoris = LEAST.replace("networks.lora", "lycoris.kohya")
    fields = read(run_toml=lycoris + 'network_args = ["preset=attn-mlp", "algo=lokr", "factor=8"]').fields
    assert (fields["adapter_type"], fields["decompose_factor"]) == ("lokr", 8)
    assert fields["output_formats"] == ["kohya"]
    assert not CONVOLUTIONS & set(fields["target_modules"])
    full = read(run_toml=lycoris + 'network_args = ["algo=locon", "dora_wd=True"]').fields
    assert full["use_dora"] is True
    assert {*CONVOLUTIONS, "conv_in"} <= set(full["target_modules"])
    assert _refused(read(run_toml=lycoris + 'network_args = ["algo=loha"]')) == {"network_args.algo"}


def test_kohya_config_without_network_module_is_refused(read):
    assert _refused(read(run_toml='pretrained_model_name_or_path = "a/b"')) == {"network_module"}


def test_prodigys_arguments_are_taken_where_they_differ_from_ours(read):
    prodigy = LEAST + 'optimizer_type = "Prodigy"\nlearning_rate = 1.0\noptimizer_args = ['
    same = read(run_toml=prodigy + '"use_bias_correction=True", "safeguard_warmup=True", "decouple=True"]')
    assert (same.refused, same.fields["adam_weight_decay"]) == ((), 0.0)
    assert "optimizer_args" not in same.fields
    other = read(run_toml=prodigy + '"use_bias_correction=True", "d_coef=2"]')
    assert other.refused == ()
    assert other.fields["optimizer_args"] == {"safeguard_warmup": False, "d_coef": 2}


def test_prompts_are_read_from_their_file_without_the_options_behind_them(read, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# mine\na dog --w 1024 --n bad\na cat\n")
    reading = read(run_toml=LEAST + f'sample_prompts = "{prompts}"\nsample_every_n_steps = 100')
    assert reading.fields["sample_prompts"] == ["a dog", "a cat"]
    assert reading.fields["validation_steps"] == 100


def test_captions_of_another_ending_are_read_folder_by_folder(read, tmp_path):
    (tmp_path / "img" / "10_sks dog").mkdir(parents=True)
    (tmp_path / "img" / "2_cat").mkdir()
    lines = f'train_data_dir = "{tmp_path}/img"\ncaption_extension = ".cap"\ncaption_prefix = "photo,"'
    found = read(run_toml=LEAST + lines).subsets
    assert [(each.repeats, each.caption, each.caption_extension, each.prefix) for each in found] == [
        (10, "sks dog", ".cap", "photo,"),
        (2, "cat", ".cap", "photo,"),
    ]
    plain = read(run_toml=LEAST + f'train_data_dir = "{tmp_path}/img"\ncaption_extension = ".txt"')
    assert (plain.directory, plain.subsets) == (tmp_path / "img", ())


def test_class_pictures_bring_their_prompt_by_their_folders_name(read, tmp_path):
    (tmp_path / "reg" / "1_a dog").mkdir(parents=True)
    reading = read(run_toml=LEAST + f'reg_data_dir = "{tmp_path}/reg"\nprior_loss_weight = 0.5')
    fields = reading.fields
    assert reading.class_directory == tmp_path / "reg"
    assert (fields["with_prior_preservation"], fields["class_prompt"], fields["prior_loss_weight"]) == (
        True,
        "a dog",
        0.5,
    )
