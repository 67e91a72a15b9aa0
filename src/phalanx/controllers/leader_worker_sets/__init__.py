"""The LeaderWorkerSet controller: replicas of a leader pod and its workers, each placed as a gang.

controller          informers, work queue, and which LeaderWorkerSet a change concerns
sync                the plan: compares a LeaderWorkerSet with its objects and returns what to do
rollout             how many replicas exist and which of them follow a new template
revisions           the history of its template as ControllerRevisions
workload_objects    the Workload and the groups of the replicas
child_objects       the StatefulSets of leaders and workers, and the Services
status              counts, conditions and their events
"""
