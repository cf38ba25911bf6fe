"""Projects, their budgets and their costs. Read projects first."""
