"""Placing: members on nodes, on paper, one after the other; greedy and cheap."""
