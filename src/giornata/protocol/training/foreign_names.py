"""Options of other trainers that a spec does not have, and what to use instead."""

from collections.abc import Mapping
from types import MappingProxyType

_PICTURES = "use sample_prompts, one for each image; validation_steps draws them during training, too"
_PICTURES_BY_STEPS = "sample images during training are counted in steps: use validation_steps"
_FOLDER = "the pictures come from the folder of the command: giornata train DIR"
_CLASS_FOLDER = (
    "send your own class pictures with giornata train --class-data-dir DIR; otherwise the base model draws them"
)
_RESULTS = "download the files with giornata download JOB -o DIR; with --standalone, give -o DIR"
_RESUME = "a job resumes from its last checkpoint by itself; remove the option"
_CACHED = "latents and unchanged captions are always encoded only once; remove the option"
_ATTENTION = "attention is always torch's scaled_dot_product_attention; remove the option"
_LOADING = "all pictures are encoded before the first step; remove the option"
_FIELDS = (
    "each argument is a field of the spec, such as use_dora, decompose_factor or rank_dropout; give these fields"
)
_RATES = "use text_encoder_learning_rates, with a rate for each text encoder"
_BLOCK_RATES = "use block_learning_rates, with the rates by block"
_STEPS = "checkpoints are counted in steps: use checkpointing_steps"

NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        # diffusers' scripts, and the ancestor, which ran one of them
        "instance_data_dir": _FOLDER,
        "class_data_dir": _CLASS_FOLDER,
        "sample_batch_size": "class pictures are drawn one at a time, so that their bits depend on nothing else; "
        "remove the option",
        "validation_prompt": _PICTURES,
        "validation_epochs": _PICTURES_BY_STEPS,
        "num_validation_images": _PICTURES,
        "output_dir": _RESULTS,
        "logging_dir": "use report_to: the results then contain a file with the curves",
        "resume_from_checkpoint": _RESUME,
        "dataloader_num_workers": _LOADING,
        "enable_xformers_memory_efficient_attention": _ATTENTION,
        "allow_tf32": "the engine decides this, because it changes bits; remove the option",
        "scale_lr": "set learning_rate to the rate that you want",
        "repeats": "repeats belong to pictures: write a column in metadata.jsonl, or name folders such as 10_sks",
        "output_kohya_format": "both formats are written by default; output_formats chooses",
        "wandb_api_key": "a spec is stored and shown, so it must not contain a key: store the key as a secret of the "
        "project (giornata secrets set WANDB), and set wandb_api_key_secret to its name",
        # kohya's sd-scripts
        "train_data_dir": _FOLDER,
        "reg_data_dir": _CLASS_FOLDER,
        "v_parameterization": "use prediction_type=v_prediction; the default is the type of the base model",
        "clip_skip": "captions are encoded as in the base model's pipeline; remove the option",
        "cache_latents": _CACHED,
        "cache_latents_to_disk": _CACHED,
        "cache_text_encoder_outputs": _CACHED,
        "cache_text_encoder_outputs_to_disk": _CACHED,
        "xformers": _ATTENTION,
        "sdpa": _ATTENTION,
        "mem_eff_attn": _ATTENTION,
        "max_data_loader_n_workers": _LOADING,
        "persistent_data_loader_workers": _LOADING,
        "no_half_vae": "SDXL's own VAE always runs in float32; remove the option",
        "full_bf16": "the adapter's weights stay float32; use mixed_precision=bf16",
        "full_fp16": "the adapter's weights stay float32; use mixed_precision=bf16",
        "network_train_unet_only": "text encoders are trained only with train_text_encoder; remove the option",
        "network_args": _FIELDS,
        "down_lr_weight": _BLOCK_RATES,
        "mid_lr_weight": _BLOCK_RATES,
        "up_lr_weight": _BLOCK_RATES,
        "text_encoder_lr1": _RATES,
        "text_encoder_lr2": _RATES,
        "save_model_as": "files are always safetensors; output_formats selects the key names of kohya or diffusers",
        "save_precision": "use output_dtype: float16, bfloat16 or float32",
        "save_every_n_epochs": _STEPS,
        "save_last_n_steps": "use checkpoints_keep_latest, a number of checkpoints",
        "save_last_n_epochs": "use checkpoints_keep_latest, a number of checkpoints",
        "save_state": _RESUME,
        "resume": _RESUME,
        "sample_every_n_epochs": _PICTURES_BY_STEPS,
        "sample_at_first": "sample images are drawn at the end, with the base model's beside them; remove the option",
        "sample_sampler": "sample images are drawn with Euler's method; remove the option",
    }
)
"""The option of another trainer, and what to use instead."""
