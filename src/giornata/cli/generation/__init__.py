"""Commands that make something of many pictures: grids and benchmarks. Read `grid` first."""
