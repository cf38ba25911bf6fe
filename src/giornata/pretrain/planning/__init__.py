"""The price of a run, and the encoders that it needs, before a cent is spent.

Read `facts`, request, from_config, pricing, ranking, then report. The functions are pure, and the command line
imports them: no tensors, no Ray. Dollars are floats here, as these are estimates; what is billed is integer
micro-dollars, elsewhere.
"""
