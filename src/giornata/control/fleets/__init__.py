"""Scaling, reconciliation and replacement of nodes, which follow the queue. Read scale first."""
