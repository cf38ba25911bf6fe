"""At which rate each tensor of a job learns, and until which step: a function of the spec and the tensor's name."""

from collections.abc import Iterable
from dataclasses import dataclass

from giornata.diffusion.adapted_layers import UNET
from giornata.diffusion.adapter_plan import lies_in
from giornata.diffusion.tokens import learning_steps
from giornata.protocol.specs import TrainSpec

TEXT, TOKENS = "text_encoders", "tokens"
ENCODERS = ("text_encoder", "text_encoder_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What tensors of one group share. `kind` is "unet", "text_encoders" or "tokens"; they learn in the first
    `stop_step` steps, None: in all."""

    kind: str
    learning_rate: float
    stop_step: int | None = None


def rate_of(spec: TrainSpec, name: str) -> Rate:
    """The rate of a tensor, by its name in `giornata.diffusion.lora.Adapters`. A rate of 0 learns in no step: its
    gradient counts in no norm, and nothing moves it."""
    prefix, _, layer = name.partition(".")
    if prefix == TOKENS:
        return Rate(kind=TOKENS, learning_rate=spec.text_encoder_lr, stop_step=learning_steps(spec))
    if prefix == UNET:
        blocks = [block for block in spec.block_learning_rates if lies_in(layer, block)]
        rate = spec.block_learning_rates[max(blocks, key=len)] if blocks else spec.learning_rate
        return Rate(kind=UNET, learning_rate=rate, stop_step=None if rate > 0 else 0)
    rates = spec.text_encoder_learning_rates
    rate = spec.text_encoder_lr if rates is None else rates[ENCODERS.index(prefix)]
    return Rate(kind=TEXT, learning_rate=rate, stop_step=spec.stop_text_encoder_training if rate > 0 else 0)


def by_rate(spec: TrainSpec, names: Iterable[str]) -> dict[Rate, list[str]]:
    """The names in groups of one rate, in the order of the first of each."""
    found: dict[Rate, list[str]] = {}
    for name in names:
        found.setdefault(rate_of(spec, name), []).append(name)
    return found


def segments_of(spec: TrainSpec, places: Iterable[tuple[str, int, int]]) -> dict[str, tuple[Rate, int, int]]:
    """Pieces of a row that learn at one rate, as (rate, start, end), by names without a dot: the kind, and from the
    second piece of a kind on a number too. `places` are (name of a tensor, start, end), one after the other."""
    pieces: list[tuple[Rate, int, int]] = []
    for name, start, end in places:
        rate = rate_of(spec, name)
        begin = pieces.pop()[1] if pieces and pieces[-1][0] == rate else start
        pieces.append((rate, begin, end))
    found: dict[str, tuple[Rate, int, int]] = {}
    for number, piece in enumerate(pieces):
        kind = piece[0].kind
        found[f"{kind}@{number}" if kind in found else kind] = piece
    return found
