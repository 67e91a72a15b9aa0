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
    migrate                    moves groups from our custom resources to `scheduling.k8s.io`
    run, run_outcome           manifests on a temporary control plane (sandbox, manifest_run) or
                               on a cluster (cluster_run), until they have run (followed_objects)
    why, describe, what_if,    read-only questions to a cluster; cluster_queries reads its objects,
      queue, top, check,       scheduler_status whether a scheduler runs; completion completes the
      debug, decisions         names of objects; job_status and workload_tree describe Jobs and
                               JobSets for why; workload_states has the states of gangs;
                               cluster_overview sums up nodes for top, whose live screen is
                               top_screen
    page                       prints an address of the web page; queue_reporter has the queue for
                               the page computed by a child process, queue_report_process
    simulate, compare          workloads through the scheduler in virtual time; simulation_file
                               loads what they run from input_files, simulation_lists the
                               lists in it, field_reader checks single fields
    record, replay             recordings of a live cluster, and their simulation
    credentials                token, kubeconfig: credentials for users
    backup                     backup, restore: copies of the store
    options, connection,       options and input: option texts, the cluster to ask, the files of -f,
      manifests,               the scheduler's configuration, pools of nodes
      scheduler_configuration,
      cluster_file
    output                     tables, progress bars, JSON and YAML

Commands print; they decide nothing and hold no state between calls.
"""
