"""Queries for jobs and their attempts, from submission to results. Read claiming first, then jobs."""
