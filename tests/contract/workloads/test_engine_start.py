"""What the engine's process loads before it says hello."""

import subprocess
import sys

PROGRAM = """
import sys

from giornata.engine.process_setup import SELDOM, absent
from giornata.engine.kinds import make_workloads

with absent(*SELDOM):
    make_workloads(["train"], "cpu")
print("peft" in sys.modules, "bitsandbytes" in sys.modules)

import torch
from giornata.diffusion.optim.optimizer import AdapterOptimizer
from giornata.diffusion.sampling.grid_layout import Group
from giornata.diffusion.optim.optimizer import AdapterOptimizer, ParameterGroup
from giornata.protocol.specs import TrainSpec

spec = TrainSpec.model_validate({"model": "m", "dataset": "ds_1", "seed": 1, "optimizer": "adamw8bit"})
row = torch.nn.Parameter(torch.zeros(8192))
optimizer = AdapterOptimizer([ParameterGroup(learning_rate=1e-3, parameters={"row": row})], spec)
row.grad.fill_(1.0)
optimizer.step(0)
print(optimizer.state()["optimizer.state1.row"].dtype, bool((row < 0).all()))
"""


def test_the_8_bit_optimizer_s_package_is_loaded_by_whoever_wants_it_and_by_nobody_else() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert told.stdout.splitlines() == ["True False", "torch.uint8 True"]
