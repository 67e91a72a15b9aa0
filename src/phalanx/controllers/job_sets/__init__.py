"""The JobSet controller: one Workload for the whole tree, then the Jobs.

job_objects      names, labels and manifests of Jobs, of the Service and of volume claims
child_jobs       the Jobs of a JobSet by attempt and state, and the counts in its status
policies         failure policy, success policy, startup order
scheduling       the tree of groups of a JobSet, and the groups that its Jobs name
sync             one sync as a pure function: state in, plan out
controller       informers, the work queue, and the requests of a plan
"""
