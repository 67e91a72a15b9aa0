"""Reports of simulations.

figures.py           computes every figure from a result; `docs/simulation.md` defines them
text.py              the summary for a terminal
plots.py             lines over time, bars and intervals as inline SVG
html_page.py         one self-contained HTML page with plots and definitions
comparison.py        paired differences of simulations, with confidence intervals, and remarks
comparison_page.py   the page of a comparison
"""
