"""Client of a Kubernetes API server, ours or any other.

    protocol.py           requests and replies as values, without I/O
    transports.py, http.py, process_channel.py    in process, over HTTPS, between two processes
    client.py             the verbs: get, list, watch, create, update, patch, delete
    discovery.py          every resource that a server serves
    informer.py, cache.py, work_queue.py          list and watch into a cache; work for controllers
    workload_sources.py   groups of pods that a server keeps as other kinds
    error_containment.py  unexpected exceptions: raised, or logged and contained
    leader_election.py    holding a Lease
    kubeconfig.py, credentials.py                 which server, as which user

Every wait goes through the event loop, so all of it also runs in virtual time. The client knows
neither store nor server.
"""
