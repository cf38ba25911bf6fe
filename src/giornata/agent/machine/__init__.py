"""The machine of a node: its address, its limits, and whether it is fit for work. Read machine_checks first."""
