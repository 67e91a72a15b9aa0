"""The Common Expression Language, as far as rules of custom resources speak it.

    text ─▶ tokens.py ─▶ parser.py ─▶ (nodes.py) ─▶ checker.py ─▶ a program ─▶ a value, or a fault
                                                      ▲
                     types.py, functions.py and the libraries: what may be called on what

Every expression is checked against types when it is compiled, and evaluated under a limit of steps
when it runs. What schemas mean to it is in `schemas.py`; how rules are compiled and judged, in
`rules.py`. Pure: an expression sees its variables and nothing else.
"""
