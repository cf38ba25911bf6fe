"""Access control: keys, permissions, secrets and names of machines. Read authenticate first."""
