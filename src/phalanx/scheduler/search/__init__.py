"""Search for a placement of members that the greedy cycle could not place.

    placement_search.py   the steps from cheap to exhaustive; start reading here
    placement_problem.py  members, nodes and constraints as arrays
    heuristics.py         other orders, moves of placed members, valid sequences
    formulation.py        the problem as an integer program, and its values as assignments
    solver.py             integer programs, solver requests and answers as values

Every candidate is verified by the filters of the policy before it counts. The search is
deterministic and bounded by counts; it holds no solver and does no I/O.
"""
