"""What somebody who submits a run is told of its cost."""

from dataclasses import replace

from giornata.cli.pretrain_submit import cost_words
from giornata.pretrain.recipes import shapes


def test_the_jobs_cost_is_not_that_of_the_gpus() -> None:
    config = shapes()
    priced = replace(config, workers=replace(config.workers, trainer_usd_per_h=2.0))
    for words in (cost_words(config), cost_words(priced)):
        assert "not of the cluster's GPUs" in words
        assert "spent_usd" in words
    assert "workers.trainer_usd_per_h" in cost_words(config)
    assert "workers.trainer_usd_per_h" not in cost_words(priced)
