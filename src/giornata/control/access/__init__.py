"""Access control: keys, people, sessions, permissions, secrets and names of machines. Read permissions first."""
