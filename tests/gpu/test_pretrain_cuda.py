"""A trainer of the pre-training on a GPU: its steps, and sharded as one of a group of one."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.rig.pretraining_steps import alone
from tests.fixtures.pretrain_feeds import batch, run_of, tiny_config

from giornata.pretrain.feeding.examples import portioned
from giornata.pretrain.feeding.feed import Feed
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.training.trainer import Trainer
from giornata.protocol.pretraining import Parallel, Precision

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"mixed_precision": Precision.BF16},
    "channels-last": {"mixed_precision": Precision.BF16, "channels_last": True},
    "FSDP2": {"mixed_precision": Precision.BF16, "parallel": Parallel.FSDP2},
    "compiled": {"mixed_precision": Precision.BF16, "torch_compile": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_pretrain_loss_falls_on_repeated_rows(name: str, tmp_path: Path) -> None:
    """Eight rows, twelve times: the loss of the last time is below that of the first."""
    device = torch.device("cuda", 0)
    config = tiny_config(tmp_path, samples=(96,), ema_start_samples=0, **OPTIONS[name])
    rows = batch([(0, 0, 0, row) for row in range(8)], 16)
    with ExitStack() as stack:
        if OPTIONS[name].get("parallel") is Parallel.FSDP2:
            stack.enter_context(alone(device))
        channel = Channel()
        trainer = Trainer(replace(run_of(config, tmp_path), device=device), channel, stack)
        progress = TrainingProgress()
        trainer.prepare(progress)
        losses = []
        for _ in range(12):
            feed = Feed(batches=[rows], unreadable=())
            examples = portioned(feed, trainer.draws, 0, 4, device).examples
            taken, numbers = trainer.step(progress, examples, 8)
            assert taken
            losses.append(numbers["loss"])
        assert losses[-1] < losses[0]
        assert {each.device.type for each in trainer.tensors().values()} == {"cuda"}
