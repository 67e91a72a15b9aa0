"""The `phalanx` command: one module per subcommand, thin layers over the other packages.

    main                       the table of commands; imports each when it is called
    up, down                   a control plane: up_server and up_components are its two processes,
                               up_processes connects them, background detaches them
    scheduler, controllers,    one component against any API server; component_runner is what they
      nodes                    share
    run                        manifests on a temporary control plane (sandbox)
    why, what_if, queue, top,  read-only questions to a cluster; cluster_queries reads its objects
      check, debug, decisions
    token, kubeconfig          credentials for users; credentials is what they share
    backup, restore            copies of the store
    completion                 shell completion scripts
    options, connection,       options and input: option texts, the cluster to ask, the files of -f,
      manifests,               the scheduler's configuration
      scheduler_configuration
    output                     tables, progress bars, JSON and YAML

Commands print; they decide nothing and hold no state between calls.
"""
