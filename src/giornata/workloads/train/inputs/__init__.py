"""Inputs of steps: encodings, class pictures, and every random choice. Read `sampling_plan` first."""
