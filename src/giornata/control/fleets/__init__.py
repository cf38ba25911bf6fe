"""Nodes follow the queue: scaling, reconciliation, replacement. Read scale first."""
