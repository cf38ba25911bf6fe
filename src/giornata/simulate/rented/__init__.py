"""Rented machines: what they are like, and the provider that gives and takes them. Read `machines` first."""
