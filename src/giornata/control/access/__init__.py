"""Who may do what: keys, permissions, secrets and names of machines. Read authenticate first."""
