"""Interfaces that the use cases need. `store` leads to every query; other ports have several adapters."""
