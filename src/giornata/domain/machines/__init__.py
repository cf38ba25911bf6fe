"""Rules of machines: their health, their checks, their ids, and what their logs and steps show. Read `health` first."""
