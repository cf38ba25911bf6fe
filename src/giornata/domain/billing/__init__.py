"""Rules of money and limits: costs, budgets, quotas. Read `money` first."""
