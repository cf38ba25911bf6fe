"""Draws pictures from prompts, and lays the pictures out on sheets. Read samples first."""
