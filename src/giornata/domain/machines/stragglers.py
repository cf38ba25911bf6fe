"""Find attempts that are too slow, and decide if moving the job pays.

A step is compared with the steps of its cohort: the same device, kind, shape and width of the batch. The measure is
the modified z-score of Iglewicz & Hoaglin ("How to Detect and Handle Outliers", 1993), 0.6745 · (x − median) / MAD,
an outlier above 3.5; one-sided here, because nobody minds a fast machine. Median and MAD hold while up to half of the
cohort is odd; mean and standard deviation are carried away by the very machine that is looked for: in a published run
of 1,000 jobs the slowest took 11.9 times the mean.

Every machine of the cohort has one voice, however many attempts it made: whether a machine is odd is asked of
machines, and attempts of one machine are no independent samples. Counted by attempts, the fast ones, which make more
of them, and those that are left after others were replaced would pull the median down and the spread together from
hour to hour, until a machine is slow that is as fast as many that the provider would give in its place.

A live attempt is judged by its latest steps, not by all of them. A machine that becomes slow after a thousand steps
is found within minutes, and steps of an hour ago do not hide it.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MAD_TO_SIGMA = 0.6745  # the 75th percentile of the normal distribution
CUT_OFF = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerPolicy:
    """The limits from which a step counts as slow, and a job is moved."""

    members: int = 6  # fewest others to compare with
    machines: int = 3  # on so many different machines
    least_mad: float = 0.15  # of the median: nobody is slow for less than 0.78 of it more
    watched_s: float = 120.0  # after the first step, before anything is said
    watched_steps: int = 10
    window_s: float = 600.0  # so many seconds of its latest steps are looked at; no fewer than `watched_steps`
    at_once_share: float = 0.1  # of the live attempts of a cohort may give their jobs back at one time, one at least
    gain: float = 1.25  # so many times longer must it take here than elsewhere
    stuck_steps: float = 20.0  # without a step for the time of so many
    stuck_s: float = 1800.0  # and for at least so long
    second_step_s: float = 43_200.0  # or so long before the second step; thousands of pictures may be encoded first


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An attempt of the cohort, live or ended: seconds for a step, and from its beginning to its first step."""

    machine_id: str
    step_s: float
    start_up_s: float


class Mark(NamedTuple):
    """A step with the moment of the server's clock at which the step became known."""

    at_ms: int
    step: int


class Trail:
    """The marks of one live attempt that lie within the window, and the one before them."""

    def __init__(self) -> None:
        self.marks: deque[Mark] = deque()

    def follow(self, newest: Mark, *, first: Mark, policy: StragglerPolicy) -> None:
        """Note how far the attempt is. `first` is its first step.

        The first step is a mark only when it lies within the window. Otherwise the attempt ran unwatched before, and
        is watched from now on.
        """
        marks, window_ms = self.marks, policy.window_s * 1000
        if not marks and newest.at_ms - first.at_ms <= window_ms:
            marks.append(first)
        if not marks or newest.step > marks[-1].step:
            marks.append(newest)
        while len(marks) > 2 and _covers(marks[1], newest, policy):
            marks.popleft()

    def step_s(self, policy: StragglerPolicy) -> float | None:
        """Seconds for each of the latest steps; None while too few of them were watched."""
        if not self.marks:
            return None
        since, until = self.marks[0], self.marks[-1]
        watched_s, steps = (until.at_ms - since.at_ms) / 1000, until.step - since.step
        enough = watched_s >= policy.watched_s and steps >= policy.watched_steps
        return watched_s / steps if enough else None


def _covers(mark: Mark, newest: Mark, policy: StragglerPolicy) -> bool:
    old_enough = newest.at_ms - mark.at_ms >= policy.window_s * 1000
    return old_enough and newest.step - mark.step >= policy.watched_steps


def paces_s(cohort: Collection[Member]) -> Mapping[str, float]:
    """Seconds for a step of each machine: the median of its attempts."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in cohort:
        found[each.machine_id].append(each.step_s)
    return {machine_id: median(steps_s) for machine_id, steps_s in found.items()}


def is_slow(step_s: float, *, machine_id: str, cohort: Collection[Member], policy: StragglerPolicy) -> bool:
    """Return True when the attempt is far slower than other machines; those on its own machine prove nothing."""
    others = [each for each in cohort if each.machine_id != machine_id]
    theirs_s = list(paces_s(others).values())
    if len(others) < policy.members or len(theirs_s) < policy.machines:
        return False
    middle_s = median(theirs_s)
    if step_s < _slow_from_s(middle_s, policy):
        return False  # whatever the spread is, it counts as no less than the least
    spread_s = max(median([abs(each - middle_s) for each in theirs_s]), policy.least_mad * middle_s)
    return spread_s > 0 and MAD_TO_SIGMA * (step_s - middle_s) / spread_s > CUT_OFF


def is_as_usual(step_s: float, *, ascending_s: Sequence[float], policy: StragglerPolicy) -> bool:
    """Return True when `is_slow` would surely be False, without a look at each of the others.

    `ascending_s` are the `paces_s` of all machines of the cohort, its own among them, the fastest first. The n-th of
    the others is no smaller than the n-th of all, so their median is at least the one that is looked up.
    """
    others = len(ascending_s) - 1
    return others < max(1, policy.machines) or step_s < _slow_from_s(ascending_s[(others - 1) // 2], policy)


def _slow_from_s(middle_s: float, policy: StragglerPolicy) -> float:
    """Return the seconds per step below which no machine counts as slow. Above this limit, the spread decides."""
    return middle_s * (1.0 + CUT_OFF / MAD_TO_SIGMA * policy.least_mad)


def move_pays(
    *, steps_left: int, step_s: float, others: Sequence[Member], wait_s: float, policy: StragglerPolicy
) -> bool:
    """Return True when the rest of the job is slower here than elsewhere, with wait and start-up of another node."""
    there_s = median(each.step_s for each in others) * steps_left
    start_up_s = median(each.start_up_s for each in others)
    return steps_left * step_s > policy.gain * (wait_s + start_up_s + there_s)


def may_move_at_once(*, live: int, policy: StragglerPolicy) -> int:
    """Return how many of the `live` attempts of a cohort may move to another machine at one time."""
    return max(1, int(live * policy.at_once_share))


def wait_for_a_node_s(
    *, idle: int, busy: int, coming: int, job_s: float, coming_s: float, ahead: int = 0
) -> float | None:
    """Return the seconds until another node can take the job; None: no node will.

    `ahead` counts the jobs that are moved already and take the first nodes. A job that comes back goes before those
    that never ran, so it gets the first of `busy` nodes that is done: with jobs of `job_s` seconds, each anywhere in
    its own, that is after job_s / (busy + 1), and the next one after twice that.
    """
    if idle > ahead:
        return 0.0
    place = ahead - idle + 1
    waits_s = [coming_s] if coming >= place else []
    waits_s += [place * job_s / (busy + 1)] if busy >= place else []
    return min(waits_s, default=None)


def is_stuck(*, silent_s: float, step_s: float | None, policy: StragglerPolicy) -> bool:
    """Return True when an attempt that beats has made no step for far longer than its steps take.

    `step_s` is None before the second step, when nobody knows how long a step takes.
    """
    return silent_s > (policy.second_step_s if step_s is None else max(policy.stuck_s, policy.stuck_steps * step_s))
