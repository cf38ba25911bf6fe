"""Quotas of projects: what is used of them, and who is passed over. Start with `use.py`."""
