"""Rules of machines: their health, checks and ids, and what their logs and steps show. Read `health` first."""
