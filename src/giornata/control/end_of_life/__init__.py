"""The end of life: what is deleted, how long the rest is kept, and what is pinned. Read delete_job first."""
