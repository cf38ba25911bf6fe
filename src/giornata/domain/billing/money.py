"""Money is integer micro-dollars (1 USD = 1,000,000)."""

import math
from decimal import Decimal, InvalidOperation

MICRO_USD = 1_000_000
MS_PER_HOUR = 3_600_000
MS_PER_DAY = 24 * MS_PER_HOUR
MOST_USD = 1_000_000_000
CENT_USD = 0.01


def cost_micro_usd(*, price_micro_usd_per_hour: int, billed_ms: int) -> int:
    """The cost of `billed_ms` milliseconds at an hourly price, rounded half up to a micro-dollar.

    Always computed from the whole interval, so that adding up heartbeats never drifts.
    """
    if price_micro_usd_per_hour < 0 or billed_ms < 0:
        raise ValueError("a price and a duration are never negative")
    return (price_micro_usd_per_hour * billed_ms + MS_PER_HOUR // 2) // MS_PER_HOUR


def cost_per_step_micro_usd(*, total_micro_usd: int, steps: int) -> float | None:
    """Micro-dollars per step; None before the first step."""
    return total_micro_usd / steps if steps > 0 else None


def format_usd(micro_usd: float | None) -> str:
    """`$0`, `$0.00024` below a cent, `$0.0213` below a dollar, `$1,234.56` above; a dash for a sum that is not known.

    Commands, pages and messages write every sum so.
    """
    if micro_usd is None:
        return "–"
    usd = micro_usd / MICRO_USD
    if usd >= 1:
        return f"${usd:,.2f}"
    if usd == 0:
        return "$0"
    # Below a micro-dollar lie only rates, such as that of a step: three digits of them.
    decimals = 4 if usd >= CENT_USD else 6 if micro_usd >= 1 else 2 - math.floor(math.log10(usd))
    whole, _, part = f"{usd:.{decimals}f}".partition(".")
    return f"${whole}.{part.rstrip('0').ljust(2, '0')}"


def format_rate_usd(usd: float) -> str:
    """Dollars for one of something, such as a step: `$0.000000213`, three digits that are not zero; `$0.0213`."""
    if not 0 < usd < CENT_USD:
        return format_usd(usd * MICRO_USD)
    return f"${usd:.{2 - math.floor(math.log10(usd))}f}"


def parse_usd(text: str) -> int:
    """Micro-dollars of what a person wrote: `0.50`, `$1.25`, `2`. Raises ValueError, which says what is wrong."""
    try:
        usd = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not an amount in dollars") from None
    if not usd.is_finite() or usd < 0 or usd > MOST_USD:
        raise ValueError(f"{text[:40]!r} is not between 0 and {MOST_USD} dollars")
    micro_usd = usd * MICRO_USD
    if micro_usd != int(micro_usd):
        raise ValueError(f"{text[:40]!r} has more than six digits behind the point")
    return int(micro_usd)
