"""Reports of simulations.

figures.py           computes every figure from a result; `docs/simulation.md` defines them
text.py              the summary for a terminal
html_page.py         one self-contained HTML page with plots
comparison.py        paired differences of simulations, with confidence intervals
comparison_page.py   the page of a comparison
"""
