"""Money is integer micro-dollars (1 USD = 1,000,000)."""

MICRO_USD = 1_000_000
MS_PER_HOUR = 3_600_000


def cost_micro_usd(*, price_micro_usd_per_hour: int, billed_ms: int) -> int:
    """What `billed_ms` milliseconds cost at an hourly price, rounded half up to a micro-dollar.

    Always computed from the whole interval, so that adding up heartbeats never drifts.
    """
    if price_micro_usd_per_hour < 0 or billed_ms < 0:
        raise ValueError("a price and a duration are never negative")
    return (price_micro_usd_per_hour * billed_ms + MS_PER_HOUR // 2) // MS_PER_HOUR


def cost_per_step_micro_usd(*, total_micro_usd: int, steps: int) -> float | None:
    """Micro-dollars per step; None before the first step."""
    return total_micro_usd / steps if steps > 0 else None


def format_usd(micro_usd: float) -> str:
    """`$0.000240` below a cent, `$1.23` above: as many digits as mean something."""
    usd = micro_usd / MICRO_USD
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.6f}"
