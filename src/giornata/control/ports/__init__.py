"""Interfaces that the use cases need. Read `store`, which leads to every query; other ports have several adapters."""
