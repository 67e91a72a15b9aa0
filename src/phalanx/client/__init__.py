"""The way to an API server, ours or any other: from a request to a cache that is kept up to date.

    requests ─▶ transports | http ─▶ answers            values in, bytes across, values out
    client ─▶ informer ─▶ cache, index ─▶ workqueue     verbs, then knowledge, then work

`requests` and `answers` do no I/O; a transport carries; `Client` speaks the verbs; an `Informer`
keeps a `Cache` of one kind; a `WorkQueue` tells a controller what to look at next; `kubeconfig`
says which server, as whom. Everything waits through the event loop, so that it runs in virtual time
too. Knows neither store nor server, and decides nothing.
"""
