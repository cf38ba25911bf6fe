"""Jobs as users see them: submission, faults of a spec, retries, estimates and replies. Read submit first."""
