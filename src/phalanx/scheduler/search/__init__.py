"""Search for a placement of members that the greedy cycle could not place.

    tree_search.py        the search of a tree of groups as a whole
    placement_search.py   the steps from cheap to exhaustive; start reading here
    placement_problem.py  members, nodes, groups and constraints as arrays
    device_counts.py      devices as counted resources of the problem
    heuristics.py         other orders, moves of placed members, valid sequences
    packing.py            packs the groups of a tree into topology domains
    equal_groups.py       equal groups of a tree are counted together
    formulation.py        the problem as an integer program, and its values as assignments
    solver.py             integer programs, solver requests and answers as values

Every candidate is verified by the filters of the policy before it counts. The search is
deterministic and bounded by counts; it holds no solver and does no I/O.
"""
