"""Preemption: selects the pods to evict so that a refused entity fits, at the lowest cost.

    evaluator.py        decides whether to preempt; start reading here
    plan_search.py      searches the cheapest plan, and proves that it is
    node_relaxation.py  the cheapest victims of independent nodes: a lower bound, mostly reached
    victim_program.py   the choice of victims as an integer program, for the exact solver
    victim_search.py    proposes victims node by node, and reprieves victims that need not go
    eviction_units.py   what is evicted together, and what an eviction costs

No pod is evicted unless the whole entity fits afterwards.
"""
