"""Objective and optimizers. Read objective first."""
