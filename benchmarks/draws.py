"""What the thread that makes a trainer's examples pays for a row: `python -m benchmarks.draws [--against SRC]`.

Rows as Stable Diffusion 2 has them (77 x 1024 of text, a tenth of the captions dropped) in batches of 64, 256 and 512
pixels. `SRC` is the src folder of another checkout: both are measured by turns, each round in processes of their own.
CPU milliseconds of one thread, the median of the rounds with the least and the most; and whether all rounds made the
same bytes, the text widened to float32. Prints a table, then one JSON line.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rig.figures import conclude, machine, spread, spread_words

ROWS, TIMES = 64, 8
RESOLUTIONS = (256, 512)


def work() -> dict[str, Any]:
    """In a process whose PYTHONPATH says which source is measured."""
    import torch

    from giornata.diffusion.encode.captions import Embedding
    from giornata.pretrain.feeding.examples import ExampleDraws
    from giornata.pretrain.feeding.feed import Batch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    text = torch.Generator().manual_seed(0)
    empty = Embedding(prompt_BLD=torch.randn(1, 77, 1024, generator=text).half(), pooled_BP=None)
    draws = ExampleDraws(seed=1, timesteps=1000, scaling=(0.0, 0.18215), proportion_empty_prompts=0.1, empty=empty)
    for resolution in RESOLUTIONS:
        latents = (ROWS, 4, resolution // 8, resolution // 8)
        batch = Batch(
            uses=[(0, row) for row in range(ROWS)],
            keys=[f"{row:064x}" for row in range(ROWS)],
            epochs=[0] * ROWS,
            mean_BCHW=torch.randn(latents, generator=text).half(),
            logvar_BCHW=(torch.randn(latents, generator=text) - 4).half(),
            prompt_BLD=torch.randn(ROWS, 77, 1024, generator=text).half(),
            pooled_BP=None,
            time_ids_B6=torch.zeros(ROWS, 6),
        )
        example = draws.example(batch, 0)
        tensors = (example.noisy.latents_BCHW, example.noisy.noise_BCHW, example.embedding.prompt_BLD.float())
        content = b"".join(each.numpy().tobytes() for each in (*tensors, example.noisy.timesteps_B))
        began_s = time.thread_time()
        for _ in range(TIMES):
            draws.example(batch, 0)
        row_ms = (time.thread_time() - began_s) * 1e3 / TIMES / ROWS
        found[str(resolution)] = {"ms_per_row": row_ms, "sha256": hashlib.sha256(content).hexdigest()}
    return found


def measured(source: str) -> dict[str, Any]:
    """By a process of its own."""
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "benchmarks.draws", "--one"]
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", help="the src folder of another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(work()))
        return
    about = machine()
    sources = {"this": str(Path(__file__).resolve().parents[1] / "src")}
    if given.against:
        sources["other"] = given.against
    rounds = [{name: measured(source) for name, source in sources.items()} for _ in range(given.rounds)]
    same = len({tuple(row["sha256"] for row in each.values()) for found in rounds for each in found.values()}) == 1
    spreads = {
        name: {
            side: spread([found[name][side]["ms_per_row"] for found in rounds], 3) for side in map(str, RESOLUTIONS)
        }
        for name in sources
    }
    print("| CPU ms of a row | " + " | ".join(f"{side} px" for side in RESOLUTIONS) + " |")
    print("|---|" + "---|" * len(RESOLUTIONS))
    for name, sides in spreads.items():
        print(f"| {name} | " + " | ".join(spread_words(each) for each in sides.values()) + " |")
    conclude({"benchmark": "draws", **about, "rounds": given.rounds, "same_bytes": same, "ms_per_row": spreads})


if __name__ == "__main__":
    main()
