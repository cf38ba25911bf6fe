"""Rules of fleets: how many nodes there are, where, and which end. Read `scaling` first."""
