"""Samples of weights, and their scores against real pictures."""
