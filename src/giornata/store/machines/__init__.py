"""Queries for nodes, the machines under them and the fleets that start them. Read nodes first."""
