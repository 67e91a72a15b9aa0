"""Greedy placement of the members of one group, in memory.

Members are assigned one after the other, each to its best node. Nothing is bound and the snapshot
stays unchanged. Modules, each importing only those below it:

    capacity_estimate.py      CapacityEstimate: upper bounds of how many members fit where
    group_placement.py        GroupPlacement: one attempt to place a group
    topology_domains.py       topology levels and domains, and how much each domain holds
    placement_simulation.py   PlacementSimulation: assigns pods to their best nodes
    node_scores.py            NodeScores: which nodes take a shape, the best first; cached
"""
