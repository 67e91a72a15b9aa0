"""Greedy placement of the members of one group, in memory.

Members are assigned one after the other, each to its best node. Nothing is bound and the snapshot
stays unchanged. Modules, each importing only those below it:

    capacity_estimate.py      CapacityEstimate: upper bounds of how many members fit where
    domain_placement.py       places a PodGroup in its best topology domain
    domain_bounds.py          CapacityBounds: which domains may hold a group or a tree
    group_placement.py        GroupPlacement: one attempt to place a group
    claim_placement.py        the claims of members for devices and volumes
    claim_ranking.py          the best nodes whose devices serve a pod
    node_ranking.py           the best nodes for equal pods in a simulation
    topology_domains.py       topology levels and domains, and how much each domain holds
    domain_scores.py          which of several domains suits a group best
    placement_simulation.py   PlacementSimulation: assigns pods to their best nodes
    node_scores.py            NodeScores: which nodes take a shape, the best first; cached
"""
