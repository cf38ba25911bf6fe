"""Results of a run: its story, its sums, its invariants and its report. Read `report` first."""
