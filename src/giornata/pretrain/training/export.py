"""The result of a run as diffusers reads it: a UNet folder of averaged weights, with a card."""

import tempfile
from pathlib import Path

from giornata.domain.errors import Fault, InvalidInput
from giornata.pretrain.data.storage import Storage
from giornata.pretrain.run_state.checkpoints import load_tensors
from giornata.pretrain.run_state.committed import CommittedCheckpoint, newest
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.run_state.progress import TrainingProgress
from giornata.pretrain.training.models import new_unet
from giornata.pretrain.training.optimizer import EMA
from giornata.pretrain.training.trainer import WEIGHT
from giornata.protocol.pretraining import PretrainConfig

CARD = "README.md"


def export(
    config: PretrainConfig, run: Storage, out: Path, *, checkpoint: CommittedCheckpoint | None = None
) -> TrainingProgress:
    """Write `out`/unet (config.json, safetensors, float32) and `out`/README.md from a checkpoint, by default the
    newest. By one process, in no group. Returns how far that checkpoint was.

    Raises InvalidInput when there is none, CheckpointDamaged when its bytes are not those that were written.
    """
    chosen = checkpoint or newest(run)
    if chosen is None:
        raise InvalidInput([Fault(where=str(run), message="has no checkpoint", hint="train first")])
    progress = chosen.progress(run)
    unet = new_unet(config.model.architecture, config.seed)
    prefix = EMA if progress.ema_steps else WEIGHT
    tensors = {prefix + name: each.detach() for name, each in unet.named_parameters()}
    with tempfile.TemporaryDirectory() as scratch:
        load_tensors(run, chosen, tensors, Path(scratch), Channel())
    unet.save_pretrained(out / "unet", safe_serialization=True)
    (out / CARD).write_text(card(config, progress), encoding="utf-8")
    return progress


def card(config: PretrainConfig, progress: TrainingProgress) -> str:
    """The card of the weights, as Markdown."""
    phases = "\n".join(
        f"- {phase.name}: {phase.resolution} px, {phase.samples:,} pictures, learning rate {phase.learning_rate:g}"
        + (" (not finished)" if place >= progress.phase else "")
        for place, phase in enumerate(config.phases)
    )
    averaged = f"average of {progress.ema_steps:,} steps" if progress.ema_steps else "as trained, not averaged"
    return f"""---
library_name: diffusers
---
# {config.name}

A UNet ({config.model.architecture.value}, {config.model.prediction_type}) pre-trained from nothing with Giornata.

{phases}

- Steps: {progress.step:,} of {config.train.global_batch_size:,} pictures; {progress.samples:,} pictures trained
- Left out: {progress.skipped_steps:,} steps with {progress.skipped_rows:,} pictures
- Weights: {averaged}
- Data: manifest {progress.origin.get("manifest", "unknown")}; encoders {progress.origin.get("encoder", "unknown")}

`UNet2DConditionModel.from_pretrained(folder, subfolder="unet")` loads it.
"""
