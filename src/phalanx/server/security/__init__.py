"""Authentication, authorization, request limits and audit.

    credential ─▶ authentication ─▶ user ─▶ authorization ─▶ priority level ─▶ handler ─▶ audit

    authentication.py, keyring.py, signing.py       tokens, certificates, service account tokens
    certificate_signer.py                           CertificateSigningRequests
    sign_in.py                                      codes with which the page gets a token
    users.py                                        well-known users and groups
    authorization.py, rbac.py                       roles and bindings; what a node may do
    bootstrap_policy.py, workload_rules.py, bootstrap_writer.py
                                                    the roles that every cluster has
    write_restrictions.py         checks that need the object: escalation, node restriction
    request_guard.py              Host and Origin checks; priority levels and their limits
    private_files.py, audit.py    files for their owner only; the audit log

Roles and bindings are ordinary objects; `rbac` follows the store, so a change applies from its
commit on. The package knows nothing of HTTP but header values and never reads a request's body.
"""
