"""Which layer a job works by that trains alone."""

import pytest

from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.wearing import lora_layer


@pytest.mark.parametrize(
    ("fields", "layer"), [({}, "slots"), ({"share_batch": False}, "slots"), ({"use_dora": True}, "peft")], ids=str
)
def test_a_job_that_wants_to_be_alone_has_the_bits_of_one_that_was_left_alone(fields, layer) -> None:
    assert lora_layer(TrainSpec.model_validate({"model": "a/b", "dataset": "ds_1", **fields})) == layer
