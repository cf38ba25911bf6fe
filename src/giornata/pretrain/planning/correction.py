"""The number of encoders, corrected while a run goes on.

Two figures are watched, each over a minute or more: `data_wait`, the share of a step in which trainers wait for the
next batch, and `utilisation`, the share of the time in which encoders work.

Trainers that wait a share w of each step run at 1 - w of what they could, so encoders that are busy throughout are
short by the factor 1 / (1 - w). What decides is the price of a trained picture, in units of the trainers' full rate:

    price = (trainers' USD/h + encoders x USD/h of one) / (1 - w)

A change that did not lower it is taken back, and not tried again: then something else than encoders is short.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

GOAL_DATA_WAIT = 0.02
BUSY = 0.90  # encoders that work more than this cannot bring more
LITTLE_WAIT, IDLE = 0.005, 0.70  # below both, some encoders are paid for nothing
KEPT_BUSY = 0.85  # what a smaller pool is sized for: between IDLE and BUSY, so that it stays
MOST_GROWTH = 2.0  # in one step: a stall of a minute must not buy a hundred machines
WORTH = 0.001  # a price counts as lower by more than this share: two minutes are never quite equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen with so many encoders."""

    encoders: int
    data_wait: float
    utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hourly:
    """`trainers_usd`: of all trainers together; `encoder_usd`: of one encoder."""

    trainers_usd: float
    encoder_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How many encoders there should be from the next safe point on, and why. `price_usd`: what is expected of it, as
    `price_of` counts."""

    encoders: int
    reason: str
    price_usd: float


def price_of(seen: Observed, hourly: Hourly) -> float:
    """USD for the work that the trainers would do in an hour without waiting."""
    return (hourly.trainers_usd + seen.encoders * hourly.encoder_usd) / max(1e-9, 1 - seen.data_wait)


def correct(now: Observed, earlier: Sequence[Observed], hourly: Hourly, *, least: int = 1, most: int) -> Correction:
    """The next number of encoders. `earlier`: what was seen with other numbers in this phase, the latest last.

    Begin with no `earlier` when the phase, the trainers or the prices change. A number outside of `least` and `most`
    is brought within.
    """
    better = _better(now, earlier, hourly)
    if better is not None:
        reason = (
            f"{now.encoders} encoders make a picture dearer than {better.encoders} did: "
            f"{price_of(now, hourly):.2f} USD for an hour's work against {price_of(better, hourly):.2f}"
        )
        price_usd = price_of(better, hourly)
        return Correction(encoders=_within(better.encoders, least, most), reason=reason, price_usd=price_usd)
    if now.data_wait > GOAL_DATA_WAIT:
        return _grown(now, earlier, hourly, least=least, most=most)
    if now.data_wait < LITTLE_WAIT and now.utilisation < IDLE:
        fewer = math.ceil(now.encoders * now.utilisation / KEPT_BUSY)
        if (fewer := _within(fewer, least, most)) < now.encoders:
            saved = (now.encoders - fewer) * hourly.encoder_usd
            reason = f"encoders work {now.utilisation:.0%} of the time: {fewer} do the same, {saved:.2f} USD/h less"
            fed = Observed(encoders=fewer, data_wait=now.data_wait, utilisation=KEPT_BUSY)
            return Correction(encoders=fewer, reason=reason, price_usd=price_of(fed, hourly))
    why = f"trainers wait {now.data_wait:.1%}, encoders work {now.utilisation:.0%}"
    return _stay(now, why, hourly, least=least, most=most)


def pays_back(now: Observed, found: Correction, hourly: Hourly, *, work_left_h: float, restart_s: float) -> bool:
    """Whether a change saves more than the restart that it takes costs, in which nobody works.

    `work_left_h`: hours that the trainers need for the rest if they never wait.
    """
    saved_usd = (price_of(now, hourly) - found.price_usd) * work_left_h
    standing_usd_per_h = hourly.trainers_usd + max(now.encoders, found.encoders) * hourly.encoder_usd
    return saved_usd > standing_usd_per_h * restart_s / 3600


def _better(now: Observed, earlier: Sequence[Observed], hourly: Hourly) -> Observed | None:
    """The smaller number that came before, if more encoders did not pay."""
    last = next((seen for seen in reversed(earlier) if seen.encoders != now.encoders), None)
    if last is None or last.encoders > now.encoders:
        return None
    return None if _lower(now, last, hourly) else last


def _lower(one: Observed, other: Observed, hourly: Hourly) -> bool:
    return price_of(one, hourly) < price_of(other, hourly) * (1 - WORTH)


def _grown(now: Observed, earlier: Sequence[Observed], hourly: Hourly, *, least: int, most: int) -> Correction:
    waits = f"trainers wait {now.data_wait:.1%}"
    if now.utilisation <= BUSY:
        why = f"{waits}, but encoders work only {now.utilisation:.0%}: look at reading, CPUs and the network"
        return _stay(now, why, hourly, least=least, most=most)
    wanted = now.encoders / max(1 / MOST_GROWTH, 1 - now.data_wait)
    more = _within(max(now.encoders + 1, math.ceil(wanted)), least, most)
    if more <= now.encoders:
        why = f"{waits}, and {most} encoders are the most that there may be"
        return _stay(now, why, hourly, least=least, most=most)
    if any(seen.encoders > now.encoders and not _lower(seen, now, hourly) for seen in earlier):
        why = f"{waits}, but more encoders were tried and did not pay"
        return _stay(now, why, hourly, least=least, most=most)
    cost, saved = (more - now.encoders) * hourly.encoder_usd, hourly.trainers_usd * now.data_wait
    hoped = Observed(
        encoders=more, data_wait=max(0.0, 1 - (1 - now.data_wait) * more / now.encoders), utilisation=1.0
    )
    if price_of(hoped, hourly) >= price_of(now, hourly):
        why = f"{waits}, {saved:.2f} USD/h; {more} encoders would cost {cost:.2f} USD/h more"
        return _stay(now, why, hourly, least=least, most=most)
    reason = f"{waits}, {saved:.2f} USD/h of them idle; {more} encoders cost {cost:.2f} USD/h more"
    return Correction(encoders=more, reason=reason, price_usd=price_of(hoped, hourly))


def _stay(now: Observed, reason: str, hourly: Hourly, *, least: int, most: int) -> Correction:
    return Correction(encoders=_within(now.encoders, least, most), reason=reason, price_usd=price_of(now, hourly))


def _within(encoders: int, least: int, most: int) -> int:
    return min(most, max(least, encoders))
