"""Quotas of projects: the part that is used, and whose jobs wait because of them. Read `use` first."""
