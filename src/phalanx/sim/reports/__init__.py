"""Reports of simulations.

figures.py     computes every figure from a result; `docs/simulation.md` defines them
text.py        the summary for a terminal
html_page.py   one self-contained HTML page with plots
"""
