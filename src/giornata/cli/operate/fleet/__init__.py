"""Commands for fleets, machines and nodes."""
