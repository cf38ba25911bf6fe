"""Queries for the work of nodes, machines and fleets. Read `work_store` first."""
