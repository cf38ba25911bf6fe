"""The GUI's files: the same options in names and units of its own."""

GUI = {
    "LoRA_type": "Standard",
    "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
    "additional_parameters": "--max_grad_norm=0 --log_prefix xl",
    "conv_dim": 32,
    "conv_alpha": 32,
    "epoch": 12,
    "max_train_epochs": "",
    "max_train_steps": "",
    "learning_rate": 1.0,
    "unet_lr": 1.0,
    "text_encoder_lr": 1.0,
    "lr_scheduler": "constant",
    "lr_warmup": 0,
    "max_resolution": "1024,1024",
    "network_dim": 32,
    "network_alpha": 16,
    "optimizer": "Prodigy",
    "optimizer_args": 'decouple=True "weight_decay = 0.4" use_bias_correction=True safeguard_warmup=True',
    "noise_offset_type": "Original",
    "noise_offset": 0.05,
    "multires_noise_iterations": 8,
    "multires_noise_discount": 0.2,
    "clip_skip": "2",
    "max_token_length": "75",
    "seed": "",
    "sdxl": True,
    "sdxl_no_half_vae": True,
    "t5xxl_lr": 0.1,
    "flux1_checkbox": True,
    "xformers": "xformers",
}


def test_names_units_and_texts_are_the_guis(read):
    reading = read(preset_json=GUI)
    expected = {
        "num_train_epochs": 12,
        "resolution": 1024,
        "optimizer": "prodigy",
        "adam_weight_decay": 0.4,
        "rank": 32,
        "noise_offset": 0.05,
        "max_grad_norm": 1e6,
        "train_text_encoder": True,
    }
    assert {name: reading.fields[name] for name in expected} == expected
    assert "conv1" not in reading.fields["target_modules"]
    assert reading.refused == ()


def test_the_gui_passes_on_one_kind_of_noise(read):
    fields = read(preset_json=GUI | {"noise_offset_type": "Multires"}).fields
    assert "noise_offset" not in fields


def test_warm_up_is_a_percentage_of_the_steps(read):
    asked = {"max_train_steps": 2000, "lr_warmup": 10, "lr_scheduler": "cosine"}
    fields = read(preset_json=GUI | asked).fields
    assert (fields["lr_warmup_steps"], fields["max_train_steps"]) == (200, 2000)
    assert "num_train_epochs" not in fields


def test_network_kinds_of_the_gui_are_lycoris(read):
    fields = read(preset_json=GUI | {"LoRA_type": "LyCORIS/LoKr", "factor": 8, "decompose_both": True}).fields
    assert (fields["adapter_type"], fields["decompose_factor"], fields["decompose_both"]) == ("lokr", 8, True)
    assert "conv1" in fields["target_modules"]
    loha = read(preset_json=GUI | {"LoRA_type": "LyCORIS/LoHa"})
    assert [row.key for row in loha.refused] == ["network_args.algo"]
