"""The files that users download."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.checkpoint import canonical_json
from giornata.diffusion.formats import FILE_NAMES, write_lora
from giornata.diffusion.lora_facts import facts_of
from giornata.diffusion.models import BaseModel
from giornata.engine.workload import Reporter
from giornata.protocol.specs import TrainSpec

FINGERPRINTS_KEY = "giornata.fingerprints"


def export(
    tensors: Mapping[str, torch.Tensor],
    base: BaseModel,
    spec: TrainSpec,
    *,
    captions: Iterable[str],
    directory: Path,
    reporter: Reporter,
    history: Sequence[dict[str, Any]],
) -> None:
    """Write and announce one file per wanted format, of the adapter's weights by the names of `Adapters`.

    Nothing in them depends on attempts, times or paths. `history` lists the fingerprints that the weights went
    through; only when there is more than one does it go into the files, whose bits may then differ from those
    of a job that was not interrupted.
    """
    facts = facts_of(
        spec,
        step=spec.max_train_steps,
        captions=captions,
        prediction_type=base.prediction_type,
        layers_per_block=base.unet.config.layers_per_block,
        family=base.family,
    )
    extra = {FINGERPRINTS_KEY: canonical_json(list(history))} if len(history) > 1 else {}
    kinds = tuple(dict.fromkeys(spec.output_formats))
    reporter.phase("exporting", 0, len(kinds))
    for done, kind in enumerate(kinds, start=1):
        name = FILE_NAMES[kind]
        path = write_lora(kind, directory / name, tensors, facts, dtype=spec.output_dtype, extra=extra)
        reporter.artifact(name, path)
        reporter.phase("exporting", done, len(kinds))
