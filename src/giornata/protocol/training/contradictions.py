"""Settings of a training job that contradict each other, or that have no effect beside others."""

from collections.abc import Iterator

from giornata.protocol.training.adapter import AdapterType
from giornata.protocol.training.base_model import BaseQuantization
from giornata.protocol.training.model_names import (
    hub_file,
    is_hub_id,
    is_single_file,
    is_url,
    looks_like_path,
    may_be_registered,
)
from giornata.protocol.training.objective import DROPOUTS, PSEUDO_HUBER, LossType
from giornata.protocol.training.optimization import WITHOUT_ADAMS, Compile, CudaGraphs, LrScheduler, Optimizer
from giornata.protocol.training.optimizer_args import args_contradictions
from giornata.protocol.training.results import (
    FILE_NAME,
    KOHYAS_OPTION,
    MOST_SHEETS,
    WANDB,
    WANDB_FIELDS,
    steps_with_sheets,
)
from giornata.protocol.training.train_fields import TrainFields, validated_steps

MAX_LOSSES = 1000
BUCKET_FIELDS = ("bucket_reso_steps", "min_bucket_reso", "max_bucket_reso", "bucket_no_upscale")
TOKEN_FIELDS = (
    "train_text_encoder_ti_frac",
    "num_new_tokens_per_abstraction",
    "token_abstraction",
    "initializer_concept",
)


def contradictions(spec: TrainFields) -> Iterator[str]:
    """A sentence for each contradiction, in the order of the sections of the spec."""
    yield from _of_base_model(spec)
    yield from _of_data(spec)
    yield from _of_held_out_pictures(spec)
    yield from _of_prior(spec)
    yield from _of_adapter(spec)
    yield from _of_new_tokens(spec)
    yield from _of_averages_and_lokr(spec)
    yield from _of_regularization(spec)
    yield from _of_objective(spec)
    yield from _of_edm(spec)
    yield from _of_optimization(spec)
    yield from _of_rates_and_moments(spec)
    yield from _of_prodigy(spec)
    yield from _of_schedule_free(spec)
    yield from args_contradictions(spec)
    yield from _of_results(spec)


def _unused(spec: TrainFields, *names: str, because: str) -> Iterator[str]:
    """A sentence for each of the fields whose value is not its default."""
    fields = type(spec).model_fields
    for name in names:
        if getattr(spec, name) != fields[name].get_default(call_default_factory=True):
            yield f"{name} has no effect {because}"


def _of_base_model(spec: TrainFields) -> Iterator[str]:
    name, vae = spec.pretrained_model_name_or_path, spec.pretrained_vae_model_name_or_path
    single, named = is_single_file(name), hub_file(name)
    if spec.fp8_base and spec.base_quantization is not BaseQuantization.FP8:
        yield f"fp8_base conflicts with base_quantization {spec.base_quantization}; choose one"
    if is_url(name) and named is None:
        yield (
            "pretrained_model_name_or_path is a URL other than https://huggingface.co/OWNER/NAME/resolve/REVISION/"
            "FILE.safetensors; put the file on the hub or on the nodes"
        )
    if not (is_url(name) or single or looks_like_path(name) or is_hub_id(name)):
        yield (
            f"pretrained_model_name_or_path {name!r} is neither a path nor a hub id; a hub id is OWNER/NAME, of "
            "letters, digits, dots, dashes and underscores"
        )
    if spec.pretrained_model_sha256 is not None and not single and not may_be_registered(name):
        yield "pretrained_model_sha256 applies only to a single .safetensors file, or a registered model"
    if spec.variant is not None and single:
        yield "variant has no effect with a single .safetensors file"
    if spec.revision is not None and named is not None and named.revision is not None:
        yield "revision is already part of the model's URL; leave revision out"
    if vae is not None and (is_url(vae) or is_single_file(vae)):
        yield "pretrained_vae_model_name_or_path must be a hub id, or a folder with a VAE in diffusers layout"


def _of_data(spec: TrainFields) -> Iterator[str]:
    if not spec.shuffle_caption:
        yield from _unused(
            spec, "keep_tokens", "keep_tokens_separator", "caption_separator", because="without shuffle_caption"
        )
    if not spec.enable_bucket:
        yield from _unused(spec, *BUCKET_FIELDS, because="without enable_bucket")
        return
    sides = ("resolution",) if spec.bucket_no_upscale else ("resolution", "min_bucket_reso", "max_bucket_reso")
    for name in sides:
        if getattr(spec, name) % spec.bucket_reso_steps:
            yield f"{name} is not a multiple of bucket_reso_steps"
    if not spec.bucket_no_upscale and spec.min_bucket_reso > spec.resolution:
        yield "min_bucket_reso is above resolution"
    if not spec.bucket_no_upscale and spec.max_bucket_reso < spec.resolution:
        yield "max_bucket_reso is below resolution"


def _of_held_out_pictures(spec: TrainFields) -> Iterator[str]:
    split = spec.validation_split
    if split <= 0:
        yield from _unused(spec, "validate_every_n_steps", because="without validation_split")
        return
    if split > 1 and split != int(split):
        yield f"validation_split {split:g} is neither a share below 1 nor a whole number of pictures"
    if spec.num_train_epochs is not None:
        yield "validation_split conflicts with num_train_epochs, which counts all pictures; use max_train_steps"
    elif len(validated_steps(spec)) > MAX_LOSSES:
        yield (
            f"validate_every_n_steps {spec.validate_every_n_steps} makes more than {MAX_LOSSES} losses in "
            f"{spec.max_train_steps} steps; use a larger number"
        )


def _of_prior(spec: TrainFields) -> Iterator[str]:
    if not spec.with_prior_preservation:
        if (spec.class_prompt or spec.class_dataset) is not None:
            yield "class_prompt and class_dataset have no effect without with_prior_preservation"
        names = ("prior_prediction", "prior_loss_weight", "num_class_images")
        yield from _unused(spec, *names, because="without with_prior_preservation")
    elif spec.class_prompt is None:
        yield "class_prompt is required with with_prior_preservation"
    if spec.prior_prediction and spec.class_dataset is not None:
        yield "class_dataset conflicts with prior_prediction, which uses no class pictures; choose one"
    if spec.with_prior_preservation and spec.prior_prediction:
        yield from _unused(spec, "num_class_images", because="with prior_prediction, which draws none")
    if spec.with_prior_preservation and spec.class_dataset:
        yield from _unused(spec, "num_class_images", because="with class_dataset, whose pictures are taken")


def _of_adapter(spec: TrainFields) -> Iterator[str]:
    if not spec.train_text_encoder:
        names = ("stop_text_encoder_training", "text_encoder_target_modules")
        yield from _unused(spec, *names, because="without train_text_encoder")


def _of_new_tokens(spec: TrainFields) -> Iterator[str]:
    words = spec.token_abstraction
    if not spec.train_text_encoder_ti:
        yield from _unused(spec, *TOKEN_FIELDS, because="without train_text_encoder_ti")
        return
    if any(one in other for place, one in enumerate(words) for other in words[:place] + words[place + 1 :]):
        yield "token_abstraction has a word that is part of another word"
    if any(word in (spec.class_prompt or "") for word in words):
        yield "class_prompt contains a word of token_abstraction, but class pictures show what the base model knows"
    if spec.shuffle_caption and any(spec.caption_separator in word for word in words):
        yield "token_abstraction contains the caption_separator"


def _of_averages_and_lokr(spec: TrainFields) -> Iterator[str]:
    lokr = spec.adapter_type is AdapterType.LOKR
    if not spec.use_ema:
        yield from _unused(spec, "ema_decay", because="without use_ema")
    if lokr and spec.use_dora:
        yield "use_dora needs adapter_type lora"
    if lokr and spec.use_rslora:
        yield "use_rslora needs adapter_type lora"
    if not lokr:
        yield from _unused(spec, "decompose_both", "decompose_factor", because="without adapter_type lokr")
    if spec.decompose_factor == 0:
        yield "decompose_factor is at least 1, or -1"
    if lokr and "diffusers" in spec.output_formats:
        yield (
            "output_formats cannot be diffusers with adapter_type lokr, because diffusers loads no LoKr into SDXL; "
            'use ["kohya"]'
        )


def _of_regularization(spec: TrainFields) -> Iterator[str]:
    lokr, dropped = spec.adapter_type is AdapterType.LOKR, [name for name in DROPOUTS if getattr(spec, name) > 0]
    if lokr:
        yield from (f"{name} needs adapter_type lora" for name in dropped)
    if spec.compile is Compile.ON:
        yield from (f"{name} conflicts with compile on; use compile off" for name in dropped)
    if spec.scale_weight_norms is None:
        return
    if lokr:
        yield "scale_weight_norms needs adapter_type lora"
    if spec.use_dora:
        yield "scale_weight_norms conflicts with use_dora, which learns the magnitude itself"
    if spec.optimizer is Optimizer.SCHEDULE_FREE:
        yield "scale_weight_norms conflicts with adamw_schedule_free, whose average ignores the scaling"


def _of_objective(spec: TrainFields) -> Iterator[str]:
    if spec.snr_gamma is not None and spec.debiased_estimation_loss:
        yield "snr_gamma and debiased_estimation_loss are two weightings of the same loss; choose one"
    if spec.rescale_betas_zero_snr and spec.prediction_type == "epsilon":
        yield "rescale_betas_zero_snr needs prediction_type v_prediction: noise cannot be learned from pure noise"
    if spec.loss_type not in PSEUDO_HUBER:
        yield from _unused(spec, "huber_c", "huber_schedule", because="without loss_type huber or smooth_l1")
    if spec.multires_noise_iterations is None:
        yield from _unused(spec, "multires_noise_discount", because="without multires_noise_iterations")


def _of_edm(spec: TrainFields) -> Iterator[str]:
    if spec.do_edm_style_training:
        if spec.snr_gamma is not None:
            yield "snr_gamma conflicts with do_edm_style_training, which has its own weighting"
        if spec.debiased_estimation_loss:
            yield "debiased_estimation_loss conflicts with do_edm_style_training, which has its own weighting"
        if spec.loss_type is not LossType.L2:
            yield "loss_type must be l2 with do_edm_style_training, whose weighting is one of squares"
        if spec.rescale_betas_zero_snr:
            yield "rescale_betas_zero_snr conflicts with do_edm_style_training: pure noise has no finite sigma"
    if spec.min_timestep >= spec.max_timestep:
        yield "min_timestep is not below max_timestep"


def _of_optimization(spec: TrainFields) -> Iterator[str]:
    if spec.use_8bit_adam and spec.optimizer is not Optimizer.ADAMW_8BIT:
        yield f"use_8bit_adam conflicts with optimizer {spec.optimizer}; choose one"
    if spec.num_train_epochs is not None and "max_train_steps" in spec.model_fields_set:
        yield "num_train_epochs conflicts with max_train_steps; choose one"
    if spec.num_train_epochs is None and spec.lr_warmup_steps > spec.max_train_steps:
        yield "lr_warmup_steps is larger than max_train_steps"
    if spec.cuda_graphs is CudaGraphs.ON and (spec.train_text_encoder or spec.train_text_encoder_ti):
        yield (
            "cuda_graphs on conflicts with train_text_encoder and train_text_encoder_ti, whose captions become "
            "tokens on the CPU within each pass; use auto"
        )
    if spec.lr_scheduler is LrScheduler.CONSTANT and spec.lr_warmup_steps > 0:
        yield "lr_scheduler constant has no warm-up; use constant_with_warmup, or lr_warmup_steps 0"


def _of_rates_and_moments(spec: TrainFields) -> Iterator[str]:
    schedule, moments = spec.lr_scheduler, ("adam_beta1", "adam_beta2", "adam_epsilon")
    if schedule is not LrScheduler.COSINE_WITH_RESTARTS:
        yield from _unused(spec, "lr_num_cycles", because="without lr_scheduler cosine_with_restarts")
    if schedule is not LrScheduler.POLYNOMIAL:
        yield from _unused(spec, "lr_power", because="without lr_scheduler polynomial")
    if not (spec.train_text_encoder or spec.train_text_encoder_ti):
        because = "without train_text_encoder or train_text_encoder_ti"
        yield from _unused(spec, "text_encoder_lr", because=because)
    if spec.text_encoder_learning_rates is not None and not spec.train_text_encoder_ti:
        because = "with text_encoder_learning_rates, which take its place"
        yield from _unused(spec, "text_encoder_lr", because=because)
    if not spec.train_text_encoder:
        yield from _unused(spec, "text_encoder_learning_rates", because="without train_text_encoder")
    if spec.optimizer in WITHOUT_ADAMS:
        yield from _unused(spec, *moments, because=f"with optimizer {spec.optimizer}, which has no such thing")


def _of_prodigy(spec: TrainFields) -> Iterator[str]:
    if spec.optimizer is not Optimizer.PRODIGY:
        return
    text_encoders = spec.train_text_encoder or spec.train_text_encoder_ti
    if spec.learning_rate < 0.1:
        yield "learning_rate is a factor of the rate that prodigy finds itself; use 1.0"
    if text_encoders and spec.text_encoder_lr != spec.learning_rate:
        yield "text_encoder_lr must equal learning_rate with prodigy, which finds one rate for all"
    for name in ("text_encoder_learning_rates", "block_learning_rates"):
        if getattr(spec, name):
            yield f"{name} conflicts with prodigy, which finds one rate for all"
    if spec.stop_text_encoder_training is not None:
        yield _STOPS
    if spec.train_text_encoder_ti and spec.train_text_encoder_ti_frac < 1:
        yield "train_text_encoder_ti_frac must be 1 with prodigy, which moves all weights"


_STOPS = "stop_text_encoder_training conflicts with prodigy and adamw_schedule_free, which move all weights"


def _of_schedule_free(spec: TrainFields) -> Iterator[str]:
    if spec.optimizer is not Optimizer.SCHEDULE_FREE:
        return
    if spec.lr_scheduler not in {LrScheduler.CONSTANT, LrScheduler.CONSTANT_WITH_WARMUP}:
        yield "lr_scheduler must be constant or constant_with_warmup with adamw_schedule_free"
    if spec.adam_beta1 == 0:
        yield "adam_beta1 must be above 0 with adamw_schedule_free, which averages by it"
    if spec.use_ema:
        yield "use_ema averages what adamw_schedule_free has averaged already; choose one"
    if spec.stop_text_encoder_training is not None:
        yield _STOPS
    if spec.train_text_encoder_ti:
        yield (
            "train_text_encoder_ti conflicts with adamw_schedule_free, whose average ignores the rescaling "
            "of the new tokens"
        )


def _of_results(spec: TrainFields) -> Iterator[str]:
    every, prompts = spec.checkpointing_steps, spec.sample_prompts
    if isinstance(every, int) and every < 1:
        yield "checkpointing_steps is at least 1, or auto"
    if not prompts:
        names = ("sample_steps", "sample_guidance_scale", "validation_steps")
        yield from _unused(spec, *names, because="without sample_prompts")
    if spec.validation_steps is None:
        yield from _unused(spec, "validation_by", because="without validation_steps")
    if len(steps_with_sheets(spec.validation_steps, spec.max_train_steps)) > MOST_SHEETS:
        yield (
            f"validation_steps {spec.validation_steps} makes more than {MOST_SHEETS} sheets in {spec.max_train_steps}"
            " steps; use a larger number"
        )
    if any(KOHYAS_OPTION.search(f"{prompt} ") for prompt in prompts):
        yield (
            "sample_prompts must be prompts without options; --n or --s would be drawn as words; use "
            "sample_steps and sample_guidance_scale"
        )
    if any(FILE_NAME.fullmatch(prompt) for prompt in prompts):
        yield "sample_prompts must be the prompts themselves, not the name of a file; use a list, or the file's lines"
    if WANDB not in spec.report_to:
        yield from _unused(spec, *WANDB_FIELDS, because='without report_to ["wandb"]')
