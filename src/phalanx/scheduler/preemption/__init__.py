"""Preemption: selects the pods to evict so that a refused entity fits, at the lowest cost.

    evaluator.py       decides whether to preempt, and compares plans; start reading here
    victim_search.py   proposes victims node by node, and reprieves victims that need not go
    eviction_units.py  what is evicted together, and what an eviction costs

No pod is evicted unless the whole entity fits afterwards.
"""
