"""All choices of a request, cheapest first, with what tells them apart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from giornata.pretrain.planning import cost
from giornata.pretrain.planning.choices import Choice, choice_of, machines_of
from giornata.pretrain.planning.facts import Facts
from giornata.pretrain.planning.request import TRAINERS, PlanRequest, with_given
from giornata.protocol.pretraining import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """`choices`: cheapest first, for every trainers and mode those encoders that make it cheapest."""

    request: PlanRequest
    facts: Facts
    choices: tuple[Choice, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> Choice | None:
        """The cheapest; None when the price book prices nothing."""
        return self.choices[0] if self.choices else None

    @property
    def best_known(self) -> Choice | None:
        """The cheapest whose trainers' rate was published or measured."""
        return self.first(lambda choice: not choice.estimated)

    @property
    def configured(self) -> Choice | None:
        """The run's own trainers in its own mode; None where they have no price."""
        mine = self.request.configured
        found = None if mine is None or mine.trainers is None else TRAINERS.match(mine.trainers)
        if mine is None or found is None:
            return None
        instance = self.facts.instance(found["instance"]).name
        return self.first(
            lambda choice: (
                (choice.mode, choice.machines.instances, choice.machines.trainer.name)
                == (mine.mode, int(found["count"]), instance)
            )
        )

    def first(self, wanted: Callable[[Choice], bool]) -> Choice | None:
        """The cheapest of those."""
        return next((choice for choice in self.choices if wanted(choice)), None)

    def beside(self, choice: Choice) -> dict[Mode, Choice]:
        """The modes on the same trainers."""
        machines = choice.machines
        same = (machines.instances, machines.trainer.name)
        return {
            other.mode: other
            for other in self.choices
            if (other.machines.instances, other.machines.trainer.name) == same
        }


def rank(request: PlanRequest, facts: Facts) -> Ranking:
    """Price every choice of a checked request."""
    known = with_given(request, facts)
    machines = list(machines_of(request, known))
    priced = [each for each in machines if not isinstance(each, str)]
    choices = [choice_of(request, known, each, mode) for each in priced for mode in request.modes]
    return Ranking(
        request=request,
        facts=known,
        choices=tuple(sorted(_cheapest_encoders(choices), key=_by_price)),
        left_out=tuple(dict.fromkeys(each for each in machines if isinstance(each, str))),
    )


def _by_price(choice: Choice) -> tuple[float, float]:
    """To the dollar; then the faster one."""
    return round(choice.bill.total_usd), choice.bill.hours


def _cheapest_encoders(choices: Iterable[Choice]) -> Iterable[Choice]:
    best: dict[tuple[int, str, Mode], Choice] = {}
    for choice in choices:
        key = (choice.machines.instances, choice.machines.trainer.name, choice.mode)
        if key not in best or choice.bill.total_usd < best[key].bill.total_usd:
            best[key] = choice
    return best.values()


def mfu_to_beat(choice: Choice, usd: float) -> float | None:
    """The trainers' MFU at which an estimated choice costs `usd`, all phases slowed alike; None if it never does.

    Encoders beside the run cost about the same at any speed: fewer are needed for longer.
    """
    fixed = choice.bill.total_usd - choice.bill.trainer_usd
    if usd <= fixed:
        return None
    mfu = sum(phase.training.mfu * phase.hours for phase in choice.phases) / choice.bill.training_hours
    return mfu * choice.bill.trainer_usd / (usd - fixed)


def online_against_offline(ranking: Ranking, beside: Choice) -> cost.BreakEven | None:
    """Break-even on the same trainers, if both modes were asked for."""
    modes = ranking.beside(beside)
    if Mode.ONLINE not in modes or Mode.OFFLINE not in modes:
        return None
    online, offline = modes[Mode.ONLINE], modes[Mode.OFFLINE]
    passes = ranking.request.samples / max(1, sum(ranking.request.rows(phase) for phase in ranking.request.phases))
    gb = offline.stored_bytes / cost.GB
    return cost.break_even(
        online_usd_per_pass=online.bill.encoder_usd / passes,
        precompute_usd=offline.bill.precompute_usd,
        storage_usd_per_month=gb * ranking.facts.value("storage_usd_per_gb_month"),
        months=ranking.request.storage_months,
    )
