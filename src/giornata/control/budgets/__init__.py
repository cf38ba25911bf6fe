"""Budgets and likely costs of jobs and projects. Read budgets first."""
