"""Pictures are drawn from prompts, and laid out on sheets. Read samples first."""
