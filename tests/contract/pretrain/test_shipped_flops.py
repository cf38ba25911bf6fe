"""What a plan knows of a model is what the model itself says, counted on tensors without contents."""

import pytest

from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.training.models import flops_per_picture, unet_on_meta, widths
from giornata.protocol.pretraining import Architecture

FACTS = load_facts()


@pytest.mark.parametrize("row", [row for row in FACTS.flops if row.model != "sd2" and row.resolution < 200], ids=str)
def test_shipped_flops_are_those_that_the_run_counts(row):
    counted = flops_per_picture(Architecture(row.model), row.resolution) / 1e9
    assert row.train_gflop == pytest.approx(counted, rel=1e-4)
    text, pooled = widths(unet_on_meta(Architecture(row.model)))
    assert FACTS.row_bytes_of(row.model, row.resolution).text_bytes == 2 * (77 * text + (pooled or 0))
