"""Cases of the claimed device have every field of a spec that decides about the operations of a step."""

from tests.fixtures.claimed_cuda.training import CLASSES, ON_SD15, SOLO, TOGETHER, USUAL

from giornata.protocol.training.adapter import AdapterFields
from giornata.protocol.training.objective import ObjectiveFields, RegularizationFields
from giornata.protocol.training.optimization import OptimizationFields

NUMBERS = {
    "alpha",
    "alpha_pattern",
    "text_encoder_lr",
    "lr_scheduler",
    "lr_warmup_steps",
    "lr_num_cycles",
    "lr_power",
    "adam_beta1",
    "adam_beta2",
    "adam_weight_decay",
    "adam_epsilon",
    "max_grad_norm",
    "ema_decay",
    "huber_c",
    "optimizer_args",
}
"""Fields that change a number of an operation, and no operation."""
SHAPES = {
    "lora_unet_blocks",
    "text_encoder_target_modules",
    "num_new_tokens_per_abstraction",
    "train_text_encoder_ti_frac",
    "num_train_epochs",
}
"""Fields that say which layers, tokens or steps there are: more or fewer of the same operations."""
ELSEWHERE = {
    "init_lora": "read before the first step",
    "share_batch": "decides who is together, and the cases of several jobs are",
    "use_8bit_adam": "another name of the optimizer adamw_8bit",
    "compile": "a claimed device runs no kernels",
    "cuda_graphs": "each case is looked at as a graph",
}


def test_cases_have_every_field_that_changes_a_step() -> None:
    groups = (AdapterFields, ObjectiveFields, RegularizationFields, OptimizationFields)
    fields = {name for group in groups for name in group.model_fields}
    jobs = (USUAL, CLASSES, *SOLO.values(), *ON_SD15.values(), *(job for jobs in TOGETHER.values() for job in jobs))
    named = {name for job in jobs for name in job}
    assert fields - named - {"learning_rate", "seed"} == NUMBERS | SHAPES | set(ELSEWHERE)
