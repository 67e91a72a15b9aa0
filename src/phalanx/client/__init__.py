"""Client of a Kubernetes API server, ours or any other.

    protocol.py           requests and replies as values, without I/O
    transports.py, http.py, process_channel.py    in process, over HTTPS, between two processes
    client.py             the verbs: get, list, watch, create, update, patch, delete
    informer.py, cache.py, work_queue.py          list and watch into a cache; work for controllers
    leader_election.py    holding a Lease
    kubeconfig.py, credentials.py                 which server, as which user
    metrics.py            metrics of work queues and informers

Every wait goes through the event loop, so all of it also runs in virtual time. The client knows
neither store nor server.
"""
