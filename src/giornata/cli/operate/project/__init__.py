"""Commands for projects: costs, quotas, webhooks, secrets, models, the end of life. Read `costs` first."""
