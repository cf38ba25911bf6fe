"""All choices of a request, cheapest first, with what tells them apart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date

from giornata.pretrain.planning.facts import INTERRUPTIBLE, Facts
from giornata.pretrain.planning.pricing import Choice, MachineChoice, choice_of, machines_of
from giornata.pretrain.planning.request import SAME, PlanRequest, with_given
from giornata.protocol.pretraining import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """`choices`: cheapest first, for every trainers and mode those encoders that make it cheapest.

    `today` is the day by which prices are old; None: their age is not judged.
    """

    request: PlanRequest
    facts: Facts
    choices: tuple[Choice, ...]
    left_out: tuple[str, ...]
    machines: tuple[MachineChoice, ...] = ()
    today: date | None = None

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
        if mine is None or mine.trainers is None:
            return None
        count, _, name = mine.trainers.partition("x")
        wanted = mine.mode, int(count), self.facts.instance(name).name
        return self.first(
            lambda choice: (choice.mode, choice.machines.instances, choice.machines.trainer.name) == wanted
        )

    def first(self, wanted: Callable[[Choice], bool]) -> Choice | None:
        """The cheapest choice that `wanted` accepts."""
        return next((choice for choice in self.choices if wanted(choice)), None)

    def beside(self, choice: Choice) -> dict[Mode, Choice]:
        """Choices on the same trainers, by mode."""
        machines = choice.machines
        same = (machines.instances, machines.trainer.name)
        return {
            other.mode: other
            for other in self.choices
            if (other.machines.instances, other.machines.trainer.name) == same
        }


def rank(request: PlanRequest, facts: Facts, *, today: date | None = None) -> Ranking:
    """Price every choice of a checked request."""
    known = with_given(request, facts)
    machines = list(machines_of(request, known))
    priced = [each for each in machines if not isinstance(each, str)]
    choices = [choice_of(request, known, each, mode) for each in priced for mode in request.modes]
    found = sorted(_cheapest_encoders(choices), key=lambda one: (round(one.bill.total_usd), one.bill.hours))
    return Ranking(
        request=request,
        facts=known,
        choices=tuple(found),  # by the price to the dollar, then by the time
        left_out=tuple(dict.fromkeys(each for each in machines if isinstance(each, str))),
        machines=tuple(priced),
        today=today,
    )


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


STORING = (Mode.OFFLINE, Mode.HYBRID)
"""Modes that pay for every different row once, where the others pay for every sample."""
PROBED_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsThatDecide:
    """`below` so many different `rows` is the cheapest; from there on `above`, which encodes in every pass."""

    rows: float
    below: Choice
    above: Choice


def rows_that_decide(ranking: Ranking) -> RowsThatDecide | None:
    """The number of rows where the cheapest mode changes; None with one kind of mode, or without prices.

    The cost of a mode that stores is a line over the number of rows: two plans give the line.
    """
    passing = ranking.first(lambda choice: choice.mode not in STORING)
    modes = [mode for mode in ranking.request.modes if mode in STORING]
    if passing is None or not modes:
        return None
    known, usd = ranking.facts, passing.bill.total_usd
    few, many = (replace(ranking.request, dataset_rows=count * PROBED_ROWS) for count in (1, 2))
    found = []
    for machines in ranking.machines:
        for mode in modes:
            low, high = (choice_of(request, known, machines, mode) for request in (few, many))
            each = (high.bill.total_usd - low.bill.total_usd) / PROBED_ROWS
            rows = (usd - low.bill.total_usd) / each + PROBED_ROWS  # pictures are read in every mode: each > 0
            found.append(RowsThatDecide(rows=rows, below=low, above=passing))
    most = max(found, key=lambda one: one.rows)
    return most if most.rows >= 1 else None


def interruptible(ranking: Ranking) -> Ranking | None:
    """The same run on machines that the provider may take away; None where the book has no such trainers.

    Trainers are machines with several GPUs: the network between single ones is not known.
    """
    request, facts = ranking.request, ranking.facts
    names = [row.instance for row in facts.offers if (row.book, row.term) == (request.prices, INTERRUPTIBLE)]
    trainers = tuple(f"1x{name}" for name in dict.fromkeys(names) if facts.instance(name).gpus > 1)
    if not trainers or not ranking.choices:
        return None
    taken = replace(
        request,
        trainers=trainers,
        encoders=(SAME,),
        own=(),
        trainer_term=INTERRUPTIBLE,
        encoder_term=INTERRUPTIBLE,
    )
    found = rank(taken, facts)
    return found if found.choices else None
