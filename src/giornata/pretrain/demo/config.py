"""The run of the demo: the recipe `shapes`, as small as it can be and still learn something."""

import json
from pathlib import Path

ROWS, ODDITIES, SIDE_PX = 2_000, 38, 64
SAMPLES = (5_000, 7_000)
PROMPTS = (
    "a red circle on a white background",
    "a blue square on a black background",
    "a green triangle on a gray background",
    "a yellow ring on a brown background",
)


def demo_toml(folder: Path) -> str:
    """As TOML, with everything below this folder."""

    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=False)  # a basic string of TOML too

    prompts = "".join(f"    {text(prompt)},\n" for prompt in PROMPTS)
    phases = "".join(
        f'\n[[phases]]\nname = "{side}"\nresolution = {side}\nsamples = {samples}\n'
        "learning_rate = 2e-3\nlr_warmup_steps = 10\ntrain_batch_size = 32\n"
        for side, samples in zip((32, 64), SAMPLES, strict=True)
    )
    return f"""recipe = "shapes"
name = "demo"
storage = {text(str(folder / "work"))}

[data]
shards = {text(str(folder / "shards"))}

[train]
global_batch_size = 64
ema_decay = 0.98
checkpoint_steps = 20
checkpoints_total_limit = 100  # the first phase's last one is drawn with at the end
validation_steps = 10
validation_rows = 64
validation_prompts = [
{prompts}]

[evaluate]
checkpoints = 4

[workers]
trainers = 2

[tracking]
trace_rows = true
{phases}"""
