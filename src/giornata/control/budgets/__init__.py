"""What jobs and projects may spend, and what they are likely to spend. Read budgets first."""
