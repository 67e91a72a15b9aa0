"""The Deployment controller: ReplicaSets per template, replaced step by step.

controller     informers, work queue, and which Deployment a change concerns
sync           the plan: compares a Deployment with its ReplicaSets and returns what to do
replica_sets   the ReplicaSet of a template: names, annotations, revisions, sizes
status         counts and conditions
"""
