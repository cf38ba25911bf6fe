"""Pre-trains the drawing model from nothing: `python -m tools.tiny_shapes.pretrain OUT`.

VAE, then latents, then UNet; then the files as float16, their scores and the model card. Checkpoints lie in
`OUT.work`: a run that was killed goes on where it was when it is started again in the same way, to the same bytes.
`OUT.work` can be removed when OUT is there.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import diffusers
import torch
import transformers
from torch import multiprocessing

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.shapes.model import new_unet, new_vae, pipeline, text_parts
from giornata.diffusion.tensor_file import write_durably
from giornata.diffusion.tiny.place_model import place_model
from giornata.domain.errors import InvalidInput
from giornata.engine.process_setup import die_with_parent
from tools.tiny_shapes.card import model_card
from tools.tiny_shapes.courses import Words, encode_pictures, unet_course, vae_course
from tools.tiny_shapes.evaluate import SEEDS, evaluate
from tools.tiny_shapes.stage import Peers, Stage, StageDependencies, StagePlan

SCORES = "scores.json"
CARD = "README.md"


def pretrain(out: Path, plan: StagePlan, *, score_seeds: tuple[int, ...] = SEEDS) -> None:
    """Make the model at `out`, with its scores and its card.

    Raises InvalidInput when `out` is something else, or when `out.work` is of a run with other numbers.
    """
    work = work_folder(out)
    work.mkdir(parents=True, exist_ok=True)
    meeting = work / "meeting"
    meeting.unlink(missing_ok=True)
    if plan.processes == 1:
        _train(0, out, plan, None)
    else:
        # Started from a process that has torch and diffusers: each by itself would take ten seconds to load them.
        multiprocessing.set_forkserver_preload([_train.__module__])
        multiprocessing.start_processes(
            _train, args=(out, plan, meeting), nprocs=plan.processes, start_method="forkserver"
        )
    if score_seeds:
        say("scoring the files")
        scores = evaluate(out, seeds=score_seeds, say=say)
        write_durably(out / SCORES, (json.dumps(scores, indent=1, sort_keys=True) + "\n").encode())
        card = model_card(plan, scores, weights_bytes=weights_bytes(out))
        write_durably(out / CARD, card.encode())


def work_folder(out: Path) -> Path:
    """Where the checkpoints of a run are."""
    return out.with_name(f"{out.name}.work")


def weights_bytes(directory: Path) -> int:
    """Size of all weights of a model."""
    return sum(path.stat().st_size for path in directory.rglob("*.safetensors"))


def say(line: str) -> None:
    """Progress, with the time of day."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def _train(rank: int, out: Path, plan: StagePlan, meeting: Path | None) -> None:
    """One process of the training. The first one writes the result."""
    if meeting is not None:
        die_with_parent()  # whoever ends the command ends its processes
    fix_determinism(threads=1)
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    with Peers(rank=rank, count=plan.processes, meeting=meeting) as peers:
        around = StageDependencies(plan=plan, peers=peers, folder=work_folder(out), say=say, clock_s=time.monotonic)
        write = _models(around)
    if rank == 0:
        place_model(out, write)
        say(f"{out}: {weights_bytes(out)} bytes of weights")


def _models(around: StageDependencies) -> Callable[[Path], None]:
    """Train both models; returns what writes them."""
    plan, peers = around.plan, around.peers
    vae, unet, text = new_vae(), new_unet(), text_parts()
    Stage(vae_course(vae, plan, peers), around).run()
    vae.requires_grad_(False)
    latents = encode_pictures(vae, plan, peers)
    if peers.rank == 0:
        around.say(f"encoded {len(latents.captions)} pictures, scaling factor {latents.scaling_factor:.4f}")
    vae.register_to_config(scaling_factor=round(latents.scaling_factor, 6))
    Stage(unet_course(unet, latents, Words(text), plan, peers), around).run()

    def write(directory: Path) -> None:
        whole = pipeline(text, vae, unet).to(dtype=torch.float16)
        whole.save_pretrained(directory, safe_serialization=True)
        for name in ("text_encoder", "text_encoder_2"):
            _load_as_float32(directory / name / "config.json")

    return write


def _load_as_float32(config: Path) -> None:
    """Whoever names no dtype shall get all parts in the same: of the text encoders the library keeps the files'."""
    fields_of = json.loads(config.read_bytes())
    config.write_text(json.dumps(fields_of | {"dtype": "float32"}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Command line: an option for every number of the plan."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_shapes.pretrain", description=__doc__)
    parser.add_argument("out", metavar="OUT", type=Path)
    for field in fields(StagePlan):
        default = getattr(StagePlan(), field.name)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--score-seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--afresh", action="store_true", help="remove OUT and its checkpoints first")
    options = vars(parser.parse_args(arguments))
    out: Path = options.pop("out")
    seeds = tuple(options.pop("score_seeds"))
    if options.pop("afresh"):
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(work_folder(out), ignore_errors=True)
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    try:
        pretrain(out, StagePlan(**options), score_seeds=seeds)
    except InvalidInput as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
