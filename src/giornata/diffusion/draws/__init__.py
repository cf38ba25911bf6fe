"""Randomness as a function of seed, purpose and counters, and the order of samples. Read randomness first."""
