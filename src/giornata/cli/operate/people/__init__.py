"""Commands for people: signing in, accounts, members, keys, notifications."""
