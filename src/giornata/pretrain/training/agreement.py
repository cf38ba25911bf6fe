"""What all trainers have to do alike in the next step, agreed on before it."""

from dataclasses import dataclass

from giornata.pretrain.feeding.examples import Portioned
from giornata.pretrain.training.peers import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """On the next step, over all trainers."""

    rows: int
    passes: int
    unreadable: int
    waited_s: float
    preempted: bool
    ended: bool
    save: bool


def agree(channel: Channel, mine: Portioned, *, waited_s: float, preempted: bool, save: bool = False) -> Agreed:
    """Tell the others what this trainer has for the step, and hear what they have. Every trainer calls it at once.
    `save` asks for a checkpoint after the step."""
    numbers = [
        len(mine.uses),
        len(mine.examples),
        len(mine.unreadable),
        int(waited_s * 1e6),
        int(preempted),
        int(mine.empty),
        int(save),
    ]
    everybodys = zip(*channel.gather(numbers), strict=True)
    rows, passes, unreadable, waited_us, anybody_preempted, ended, anybody_saves = everybodys
    return Agreed(
        rows=sum(rows),
        passes=max(passes),
        unreadable=sum(unreadable),
        waited_s=max(waited_us) / 1e6,
        preempted=any(anybody_preempted),
        ended=all(ended),
        save=any(anybody_saves),
    )
