"""All of pre-training on this machine, with a trainer killed in each phase."""
