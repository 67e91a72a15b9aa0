"""The scheduler as a control loop: it feeds the pure core and carries out its decisions.

informers ─▶ SchedulerState ─▶ decision ─▶ bind or evict ─▶ status, events, metrics

scheduler.py               the loop: pop an entity, decide, assume, bind or evict, report
event_handlers.py          cluster objects from informers into the scheduler state
binder.py                  GroupBinding for whole groups; pod by pod on foreign servers
claim_writer.py            allocates claims one by one before the pods are bound, on foreign servers
volume_prebinder.py        waits until volumes of placed pods are provisioned and bound
device_prebinder.py        waits until drivers have prepared the devices of placed pods
bind_intents.py            completes or undoes gangs that a foreign server bound in part
evictor.py                 evicts victims of preemption
status_writer.py           conditions and counts of pods and PodGroups
composite_status_writer.py conditions of CompositePodGroups
group_reports.py           losses, preemptors and shortfalls of PodGroups
report_limits.py           how often pending entities are reported
pending_status.py          conditions of entities that cannot be tried yet
scheduling_log.py          log lines about decisions, binds and evictions
decision_log.py            the replayable log of observations and decisions
exact_solver.py            the integer programs of the core, solved by HiGHS
metrics.py                 the metrics of kube-scheduler
"""
