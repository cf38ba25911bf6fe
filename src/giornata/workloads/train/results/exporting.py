"""Writes the files that users download."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.determinism import differences
from giornata.diffusion.files.formats import write_embeddings, write_lora
from giornata.diffusion.files.lora_facts import LoraFacts, facts_of
from giornata.diffusion.files.model_card import CARD, hashes_of, model_card
from giornata.diffusion.tensor_file import canonical_json, write_durably
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.file_names import embeddings_file, lora_file
from giornata.workloads.interface import Reporter

FINGERPRINTS_KEY = "giornata.fingerprints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The contents of the result files, for the page about them. `origin` is the files' metadata besides `facts`."""

    facts: LoraFacts
    files: tuple[str, ...]
    parameters: int
    origin: Mapping[str, str]


def export(
    tensors: Mapping[str, torch.Tensor],
    base: BaseModel,
    spec: TrainSpec,
    *,
    captions: Iterable[str],
    directory: Path,
    reporter: Reporter,
    history: Sequence[dict[str, Any]],
    data_sha256: str,
    base_sha256: str,
) -> Exported:
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
    origin = hashes_of(spec, data_sha256=data_sha256, base_sha256=base_sha256)
    origin |= {FINGERPRINTS_KEY: canonical_json(list(history))} if len(history) > 1 else {}
    kinds = tuple(dict.fromkeys(spec.output_formats))
    reporter.phase("exporting", 0, len(kinds))
    for done, kind in enumerate(kinds, start=1):
        name = lora_file(kind, spec.output_name)
        path = write_lora(kind, directory / name, tensors, facts, dtype=spec.output_dtype, extra=origin)
        reporter.artifact(name, path)
        reporter.phase("exporting", done, len(kinds))
    if spec.train_text_encoder_ti:
        path = directory / embeddings_file(spec.output_name)
        write_embeddings(path, tensors, dtype=spec.output_dtype, extra=origin)
        reporter.artifact(path.name, path)
    return Exported(
        facts=facts,
        files=tuple(lora_file(kind, spec.output_name) for kind in kinds),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        origin=origin,
    )


def write_page(exported: Exported, *, samples: str | None, directory: Path, reporter: Reporter) -> None:
    """Write and announce the page about the files, if the job wants one. `samples` is the name of the sheet of
    pictures that it is to show."""
    if not exported.facts.spec.model_card:
        return
    card = model_card(
        exported.facts,
        files=exported.files,
        parameters=exported.parameters,
        extra=exported.origin,
        samples=samples,
    )
    write_durably(directory / CARD, card.encode())
    reporter.artifact(CARD, directory / CARD, "text/markdown")


# ---- in which sense a result is exact

JOINT = "joint"
"""The fingerprint's entry of steps that were made in a shared batch: {"place": …, "width": …, "rank": …}."""


def exactness_of(history: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return {"class": "solo" | "joint", "why": …} of weights that went through these fingerprints
    (checkpoint.Header).

    solo: the bits of a run alone, on equal hardware and versions. joint: the bits of any run that has the same places
    and widths at the same steps, whatever jobs are beside it; equal to solo up to rounding. Where anything else in
    the fingerprint changed on the way, `why` names each change: the bits are then those of a run that changes in the
    same way at the same steps, and of no uninterrupted one.
    """
    shared = [entry["from_step"] for entry in history if JOINT in entry["fingerprint"]]
    kind, how = "solo", "every step was made alone"
    if shared:
        kind, how = "joint", f"from step {shared[0]} on, steps were made in a batch shared with other jobs"
    return {"class": kind, "why": "; ".join([how, *_changes(history)])}


def _changes(history: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Describe each change of fingerprint, other than the place in a shared batch, in one sentence."""
    for before, after in pairwise(history):
        changed = differences(before["fingerprint"], after["fingerprint"])
        said = [
            f"{name} {_in_words(now)} instead of {_in_words(then)}"
            for name, (then, now) in changed.items()
            if name != JOINT
        ]
        if said:
            yield f"from step {after['from_step']} on with {', '.join(said)}"


def _in_words(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
