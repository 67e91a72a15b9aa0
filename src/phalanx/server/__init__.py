"""The Kubernetes REST API over a store: request in, reply or stream out.

`app.Server.handle` is the one door; `listener.py`, `http.py` and `parser.py` put it on the
network. Every kind is served by the same endpoints (`reading.py`, `writing.py`, `deleting.py`),
which walk the rows of `api.kinds`. Does not schedule, does not run controllers, does not know
SQL.
"""
