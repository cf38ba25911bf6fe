"""What somebody who submits a run is told of its cost."""

from dataclasses import replace

from giornata.cli.pretraining.pretrain_submit import cost_words
from giornata.pretrain.recipes import sd2_base


def test_the_jobs_cost_is_its_nodes_and_the_run_says_what_that_should_be() -> None:
    config = sd2_base()
    assert "workers.trainer_usd_per_h" in cost_words(config)
    workers = replace(config.workers, trainer_usd_per_h=2.0, encoder_usd_per_h=0.5)
    for mode, per_h in (("hybrid", 8 * 2 + 8 * 0.5), ("offline", 8 * 2)):
        priced = replace(config, workers=workers, encode=replace(config.encode, mode=mode, encoders=8))
        words = cost_words(priced)
        assert f"${per_h:.2f}/h" in words
        assert "--price" in words
        assert "spent_usd" in words
