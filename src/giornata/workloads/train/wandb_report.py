"""What W&B gets to know of a job (see giornata.diffusion.wandb_run): nothing of the machine, and no path on it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from giornata.diffusion.lora_facts import public_name
from giornata.diffusion.model_card import MODEL_NAMES
from giornata.diffusion.wandb_run import WandbRun, thinned
from giornata.protocol.specs import TrainSpec

NO_OTHERS: Mapping[str, Mapping[int, float]] = MappingProxyType({})
NOT_TOLD = frozenset({"hub_token_secret", "wandb_api_key_secret"})


def wandb_run(
    spec: TrainSpec,
    curves: Mapping[str, Sequence[float]],
    *,
    job: str,
    origin: Mapping[str, str],
    at: Mapping[str, Mapping[int, float]] = NO_OTHERS,
) -> WandbRun:
    """The run of a job. The curves have one value per step, from step 1; those in `at` have values at some steps, all
    of which are kept."""
    fields = {name: value for name, value in spec.model_dump(mode="json").items() if name not in NOT_TOLD}
    named = {name: public_name(fields[name]) for name in MODEL_NAMES if fields.get(name)}
    rows = [dict(zip(curves, row, strict=True)) for row in zip(*curves.values(), strict=True)]
    for name, values in at.items():
        for step, value in values.items():
            rows[step - 1][name] = value
    tagged = [{f"train/{tag}": value for tag, value in row.items()} for row in rows]
    kept = dict(thinned(list(enumerate(tagged, start=1)), of=spec.max_train_steps))
    kept |= {step: tagged[step - 1] for values in at.values() for step in values}
    return WandbRun(
        id=job,
        name=spec.wandb_run_name or job,
        project=spec.wandb_project,
        entity=spec.wandb_entity,
        config=fields | named | dict(origin),
        rows=sorted(kept.items()),
    )
