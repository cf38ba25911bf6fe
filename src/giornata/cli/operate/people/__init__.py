"""Commands for people: signing in, accounts, members, keys, notifications. Read `login` first."""
