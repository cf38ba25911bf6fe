"""The rules of the house. Standard library only: no I/O, no clock, no randomness."""
