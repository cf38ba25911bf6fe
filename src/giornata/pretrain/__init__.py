"""Pre-training: Ray Data brings pictures to encoders and trainers, Ray Train keeps them running. Read `run` first.

Ray is the distributed engine. What is decided here is which row is trained when (`rows_of_phase`, `ledger`), what a
row becomes (`graph`), and the loop of a trainer. Every draw is a function of the seed, the picture and the epoch, so
that a row does not depend on which trainer gets it.
"""
