"""Which jobs have equal steps."""

import pytest

from giornata.protocol.specs import STEP_SIZE, TrainSpec, shape_key_of


def stored(**fields: object) -> dict[str, object]:
    """A spec as it is stored: every default written down."""
    given = {"model": "stabilityai/sdxl", "dataset": "ds_1", "seed": 5, **fields}
    return TrainSpec.model_validate(given).model_dump(mode="json")


def test_every_field_that_sizes_a_step_is_one_of_the_spec() -> None:
    assert set(TrainSpec.model_fields) >= set(STEP_SIZE)


@pytest.mark.parametrize(
    "changes",
    [
        {"resolution": 512},
        {"train_batch_size": 2},
        {"gradient_accumulation_steps": 4},
        {"mixed_precision": "bf16"},
        {"compile": "off"},
        {"model": "another/model"},
        {"base_quantization": "int8"},
        {"max_token_length": 150},
        {"validation_steps": 5, "sample_prompts": ["a toy"]},
    ],
)
def test_shape_key_differs_by_options_that_change_step_cost(changes: dict[str, object]) -> None:
    usual = stored(resolution=1024, mixed_precision="no", compile="auto")
    other = stored(**({"resolution": 1024, "mixed_precision": "no", "compile": "auto"} | changes))
    assert shape_key_of("train", usual) != shape_key_of("train", other)


@pytest.mark.parametrize(
    "changes", [{"dataset": "ds_2"}, {"seed": 9}, {"max_train_steps": 7}, {"learning_rate": 1e-2}, {"rank": 32}]
)
def test_shape_key_ignores_options_that_do_not_change_step_cost(changes: dict[str, object]) -> None:
    assert shape_key_of("train", stored()) == shape_key_of("train", stored(**changes))


def test_kinds_of_ones_own_are_told_apart_by_their_kind() -> None:
    assert shape_key_of("x-a", {"anything": 1}) == shape_key_of("x-a", {"anything": 2})
    assert shape_key_of("x-a", {}) != shape_key_of("x-b", {})
