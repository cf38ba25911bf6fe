"""Routes and pages that sign people and devices in. Read `sessions` first."""
