"""How many encoders a run needs, and what it costs, before a cent is spent.

Pure functions over facts with their sources. Standard library only: the command line imports this.

    request.py    what is to be planned                       reading.py    the same from TOML or JSON, checked whole
    of_run.py     the same from a run's configuration         measured.py   the rates of a cluster
    facts.py      prices, FLOPs and rates, with sources       roofline.py   rates that nobody measured
    cost.py       hours, dollars and encoders                 choices.py    one choice of machines and mode, priced
    ranking.py    all choices, and what decides               reasons.py    the same in words
    report.py     the same as plain values

Dollars are floats here: these are estimates. What is billed is integer micro-dollars, elsewhere.
"""
