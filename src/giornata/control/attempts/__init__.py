"""An attempt's life: claim, heartbeat, commit, and each way in which it ends.

Read `claiming.claim`, `heartbeat`, `ending.lapse` and `ending.requeue` in this order.
"""
