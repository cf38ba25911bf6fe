"""Requests of the server to addresses that users name: webhooks and mail. Read public_addresses first."""
