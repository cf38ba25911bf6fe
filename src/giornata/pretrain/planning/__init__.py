"""How many encoders a run needs, and what it costs, before a cent is spent.

Pure functions over facts with their sources. Standard library only: the command line imports this.

    request.py    what is to be planned, checked whole        reading.py    the same from TOML or JSON
    facts.py      prices, FLOPs and rates, with sources       roofline.py   rates that nobody measured
    sizing.py     how many encoders                           cost.py       hours and dollars
    choices.py    one choice of machines and mode, priced     ranking.py    all choices, and why
    reasons.py    the why, in words                           paper.py      the seed's tables, computed again
    measured.py   what a cluster was found to do

Dollars are floats here: these are estimates. What is billed is integer micro-dollars, elsewhere.
"""
