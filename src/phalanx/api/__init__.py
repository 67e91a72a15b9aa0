"""What exists: kinds, schemas, defaults, rules, patches, selectors, quantities, errors.

    kinds.py, model.py   a row per kind, and what a kind means
    rules/               what is wrong with an object
    defaults/            what it gets without saying it
    versions/            the forms that it is served in, and the one in which it is stored
    owning/              who has said which field
    printing/            what `kubectl get` shows of it
    custom/, cel/        kinds that users define, and the language of their rules
    schema.py, protobuf.py, openapi.py     what objects look like, on every wire
    core.py, batch.py, scheduling.py ...   objects as readers use them, partial and frozen

The lowest room: pure values and functions that every other room may use and that use none of them.
Reads no clock, does no I/O, draws no lots.
"""
