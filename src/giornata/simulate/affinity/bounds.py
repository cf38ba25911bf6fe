"""Loads per request that random routing makes, the fewest that any can make, and the shortest end of an outage."""

import math
from collections.abc import Sequence

from giornata.simulate.affinity.setting import AffinitySetting


def random_loads(setting: AffinitySetting) -> float:
    """Return the loads per request of random routing: the miss rate of a least-recently-used cache of `gpu_bases`.

    Each node sees the whole stream thinned, so the fleet's size cancels out. Che's approximation (H. Che, Y. Tung,
    Z. Wang, "Hierarchical Web Caching Systems", IEEE JSAC 2002).
    """
    shares = setting.popularity()

    def held(time: float) -> float:
        return sum(1 - math.exp(-share * time) for share in shares)

    low, high = 0.0, 1.0
    while held(high) < setting.gpu_bases:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < setting.gpu_bases else (low, middle)
    return sum(share * math.exp(-share * low) for share in shares)


def fewest_loads(setting: AffinitySetting, *, wait_s: float) -> float:
    """Return the fewest loads per request of any routing that lets no request wait longer than `wait_s`.

    A base that keeps a place in GPU memory somewhere is never loaded. Its places have to carry its work: a base that
    is asked for λ times a second takes max(1, λ draw_s) places of the fleet's. One that keeps none is loaded at least
    once for the requests that come within `wait_s` of the first: λ / (1 + λ wait_s) times a second. Which bases keep
    a place is a fractional knapsack: places go to those that save the most loads for each place.
    """
    rates = [share * setting.requests_per_s for share in setting.popularity()]
    return _knapsack(rates, setting, wait_s=wait_s) / sum(rates)


def _knapsack(rates: Sequence[float], setting: AffinitySetting, *, wait_s: float) -> float:
    loads = [rate / (1 + rate * wait_s) for rate in rates]
    places = [max(1.0, rate * setting.draw_s) for rate in rates]
    free = float(setting.nodes * setting.gpu_bases)
    order = sorted(range(len(rates)), key=lambda number: -loads[number] / places[number])
    left = 0.0
    for number in order:
        kept = min(1.0, free / places[number])
        free -= kept * places[number]
        left += (1 - kept) * loads[number]
    return left


def shortest_drain_s(setting: AffinitySetting, *, waiting: int) -> float:
    """Return the seconds after an outage before which no routing can have the queue down to `waiting` requests.

    The nodes have `nodes` seconds of work in each second. All but `waiting` of the requests that came since the begin
    of the outage have to be begun, each takes `draw_s`, and one on each node may still be under way. Each distinct
    base among them that has no place in GPU memory is loaded once at least. Figures are means over the arrivals.
    Infinite where arrivals alone take the whole fleet.
    """
    rates = [share * setting.requests_per_s for share in setting.popularity()]
    spare = setting.nodes - setting.requests_per_s * setting.draw_s
    if spare <= 0:
        return math.inf
    under_way_s = setting.nodes * (setting.draw_s + setting.load_s)
    drawing_s = setting.draw_s * (setting.requests_per_s * setting.outage_s - waiting) - under_way_s
    places = setting.nodes * setting.gpu_bases + waiting
    drained_s = 0.0
    for _ in range(100):  # the later the end, the more bases are asked for until then
        distinct = sum(1 - math.exp(-rate * (setting.outage_s + drained_s)) for rate in rates)
        drained_s = max(0.0, drawing_s + setting.load_s * max(0.0, distinct - places)) / spare
    return drained_s
