"""The loops that act: the scheduler's shell, nodes, Jobs, groups, and what keeps a cluster tidy.

    loop.py, actions.py      informers → work queue → reconcile → actions: what every controller is
    roster.py, bureau.py     the controllers, a row each, and whoever runs them beside an API server
    office.py, tenure.py     a scheduler beside an API server, and leading there or standing by
    shell/                   pop, decide, assume, bind or evict, report
    nodes/                   our own nodes and their kubelets; nodes that fall silent
    jobs/, cron/, groups/    what makes pods and groups, and counts them
    claims/, upkeep/         claims on devices; garbage, namespaces, budgets, roles

Each learns what there is from informers, decides with pure functions, and acts through a Client:
the same code inside `phalanx up`, against a real API server, and in virtual time. Never touches
a store.
"""
