"""Commands for fleets, machines and nodes. Read `fleets` first."""
