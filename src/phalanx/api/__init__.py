"""What exists: kinds, schemas, defaults, rules, patches, selectors, quantities, errors.

The lowest room: pure values and functions that every other room may use and that use none of them.
Reads no clock, does no I/O, draws no lots.
"""
