"""Who asks, may they, and what they are held to.

    credential ─▶ authentication ─▶ User ─▶ lanes ─▶ policy (RBAC) and nodes ─▶ endpoint ─▶ audit
                                                        └─▶ restrictions: what may be granted

Roles and bindings are ordinary objects; `policy` follows the store, so a change counts from its
commit on. Knows nothing of HTTP but header values, and never reads a body: what depends on one is
asked by `server.writing` once it is read.
"""
