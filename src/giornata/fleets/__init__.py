"""Drivers: the code that talks to a provider of machines. Read `static`, the smallest driver."""
