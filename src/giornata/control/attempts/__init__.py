"""An attempt's life: claim, heartbeat, commit, and each way in which it ends. Read claim, heartbeat, lapse and
requeue in this order."""
