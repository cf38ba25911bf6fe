"""Ends of attempts, and what they mean for the job and the machine. Read `end_attempt` first."""
