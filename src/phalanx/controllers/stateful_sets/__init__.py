"""The StatefulSet controller: numbered pods with stable names, claims and ordered updates.

controller   informers, work queue, and which StatefulSet a change concerns
sync         the plan: compares a StatefulSet with its pods and returns what to do
revisions    the history of its template as ControllerRevisions
pod_objects  the pods and claims that are created for an ordinal
"""
