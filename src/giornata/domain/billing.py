"""From when to when a provider bills an instance, as far as listings and heartbeats tell."""


def ended_about_ms(*, there_ms: int, gone_ms: int, asked_ms: int | None, missed_ms: int | None) -> int:
    """When an instance ended that was there at `there_ms`, and was not listed as running at `gone_ms`.

    An instance that was asked to end in between ended when it was asked. Otherwise it ended before `missed_ms`, when
    a heartbeat of its node was due and did not come. The middle of what is left is as often too early as too late.
    Instants are epoch milliseconds.
    """
    there_ms = min(there_ms, gone_ms)
    if asked_ms is not None and there_ms <= asked_ms <= gone_ms:
        return asked_ms
    before_ms = gone_ms if missed_ms is None or not there_ms < missed_ms < gone_ms else missed_ms
    return (there_ms + before_ms) // 2
