"""The `phalanx` command: thin layers over the other packages.

    main                       the table of commands; imports each when it is called; completion
    up                         a control plane: up_server and up_components are its two processes,
                               up_processes connects them and restarts the second
    event_loop_watchdog        logs what blocks the event loop of a process
    background                 down; detaches and stops a control plane
    clusters                   clusters, status, delete; cluster_state names the data directories
                               and remembers options, user_kubeconfig edits ~/.kube/config
    scheduler, controllers,    one component against any API server; component_runner is what they
      nodes                    share
    install                    manifests that run scheduler and controllers on a cluster
    run                        manifests on a temporary control plane (sandbox)
    why, what_if, queue, top,  read-only questions to a cluster; cluster_queries reads its objects,
      check, debug, decisions  scheduler_status whether a scheduler runs
    simulate, compare          workloads through the scheduler in virtual time; simulation_file
                               loads what they run
    credentials                token, kubeconfig: credentials for users
    backup                     backup, restore: copies of the store
    options, connection,       options and input: option texts, the cluster to ask, the files of -f,
      manifests,               the scheduler's configuration
      scheduler_configuration
    output                     tables, progress bars, JSON and YAML

Commands print; they decide nothing and hold no state between calls.
"""
