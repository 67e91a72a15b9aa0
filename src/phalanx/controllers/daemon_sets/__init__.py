"""The DaemonSet controller: one pod on every eligible node, updated node by node.

controller   informers, work queue, adoption, history and one sync
sync         the plan: eligible nodes, pods to create and delete, and the status
"""
