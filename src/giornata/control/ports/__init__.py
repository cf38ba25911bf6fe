"""Interfaces of the use cases to the world. `store` leads to every query; other ports have several adapters."""
