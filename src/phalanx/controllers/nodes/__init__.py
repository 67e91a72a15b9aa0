"""Nodes: hosted ones with their kubelets, and the controllers of all nodes.

A hosted node is simulated (nothing is executed) or a process node (pods run as local processes).

    node_pool.py            Node objects of hosted nodes; runs them beside any API server
    node_heartbeats.py      leases and Ready conditions of hosted nodes
    pod_admission.py        which pods a node accepts
    simulated_kubelet.py    moves pods of simulated nodes through their stages
    process_kubelet.py      runs pods of process nodes
    container_process.py    a container as a local process, its devices as environment variables
    launch.py               sets the limits of such a process and executes its command
    simulated_devices.py    ResourceSlices of simulated nodes (`--devices`)
    process_metrics.py      CPU and memory of these processes, for `kubectl top`
    pod_status.py           the status documents that kubelets write
    node_lifecycle.py       nodes without heartbeats; taints that follow from conditions
    taint_eviction.py       deletes pods that do not tolerate NoExecute taints
"""
