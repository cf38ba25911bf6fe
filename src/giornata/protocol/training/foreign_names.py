"""What other trainers call that is no field of a spec here, and what to do instead."""

from collections.abc import Mapping
from types import MappingProxyType

_PICTURES = "sample_prompts, one for each picture; validation_steps draws them in the middle of training, too"
_PICTURES_BY_STEPS = "pictures in the middle of training are counted in steps: validation_steps"
_FOLDER = "the pictures are those of the folder that is sent: giornata train DIR"
_CLASS_FOLDER = "own class pictures: giornata train --class-data-dir DIR; without, the base model draws them"
_RESULTS = "files are fetched when the job is done: giornata download JOB -o DIR; with --standalone: -o DIR"
_RESUME = "a job goes on from its last checkpoint by itself; remove it"
_CACHED = "latents, and captions that do not change, are encoded once anyway; remove it"
_ATTENTION = "attention is torch's scaled_dot_product_attention anyway; remove it"
_LOADING = "pictures are encoded before the first step, and nothing is loaded in between; remove it"
_FIELDS = "each is a field of its own here, such as use_dora, decompose_factor, rank_dropout; give these"
_RATES = "give a rate for each text encoder: text_encoder_learning_rates"
_BLOCK_RATES = "give the rates themselves by block: block_learning_rates"
_STEPS = "checkpoints are counted in steps: checkpointing_steps"

NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        # diffusers' scripts, and the ancestor, which ran one of them
        "instance_data_dir": _FOLDER,
        "class_data_dir": _CLASS_FOLDER,
        "sample_batch_size": "class pictures are drawn one at a time, so that their bits depend on nothing else; "
        "remove it",
        "validation_prompt": _PICTURES,
        "validation_epochs": _PICTURES_BY_STEPS,
        "num_validation_images": _PICTURES,
        "output_dir": _RESULTS,
        "logging_dir": "report_to: a file with the curves is among the results",
        "resume_from_checkpoint": _RESUME,
        "dataloader_num_workers": _LOADING,
        "enable_xformers_memory_efficient_attention": _ATTENTION,
        "allow_tf32": "the engine decides it, for it changes bits; remove it",
        "scale_lr": "give the rate that you want: learning_rate",
        "repeats": "repeats belong to pictures: a column of metadata.jsonl beside file_name, or folders named 10_sks",
        "output_kohya_format": "both formats are written anyway; output_formats chooses",
        "wandb_api_key": "a spec is kept and shown, so no key may be in it: keep it as a secret of the project "
        "(giornata secrets set WANDB), and give its name as wandb_api_key_secret",
        # kohya's sd-scripts
        "train_data_dir": _FOLDER,
        "reg_data_dir": _CLASS_FOLDER,
        "v_parameterization": "prediction_type=v_prediction; by default what the base model says of itself",
        "clip_skip": "text encoders are read as the base model's pipeline reads them; remove it",
        "cache_latents": _CACHED,
        "cache_latents_to_disk": _CACHED,
        "cache_text_encoder_outputs": _CACHED,
        "cache_text_encoder_outputs_to_disk": _CACHED,
        "xformers": _ATTENTION,
        "sdpa": _ATTENTION,
        "mem_eff_attn": _ATTENTION,
        "max_data_loader_n_workers": _LOADING,
        "persistent_data_loader_workers": _LOADING,
        "no_half_vae": "SDXL's own VAE runs in float32 anyway; remove it",
        "full_bf16": "the adapter's weights stay float32; mixed_precision=bf16",
        "full_fp16": "the adapter's weights stay float32; mixed_precision=bf16",
        "network_train_unet_only": "text encoders are trained only with train_text_encoder; remove it",
        "network_args": _FIELDS,
        "down_lr_weight": _BLOCK_RATES,
        "mid_lr_weight": _BLOCK_RATES,
        "up_lr_weight": _BLOCK_RATES,
        "text_encoder_lr1": _RATES,
        "text_encoder_lr2": _RATES,
        "save_model_as": "files are safetensors; whose names they have says output_formats",
        "save_precision": "output_dtype: float16, bfloat16 or float32",
        "save_every_n_epochs": _STEPS,
        "save_last_n_steps": "checkpoints_keep_latest counts checkpoints",
        "save_last_n_epochs": "checkpoints_keep_latest counts checkpoints",
        "save_state": _RESUME,
        "resume": _RESUME,
        "sample_every_n_epochs": _PICTURES_BY_STEPS,
        "sample_at_first": "pictures are drawn when the job is done, and the base model's are beside them; remove it",
        "sample_sampler": "sample_prompts are drawn by Euler's method; remove it",
    }
)
"""Options of the trainers that people come from → what to do here."""
