"""Volume controllers: binding, provisioning, protection and ephemeral claims.

binder       the controller that binds claims and volumes, and releases volumes
binding      its plans: pure functions of a claim or volume and what they refer to
protection   finalizers of claims and volumes in use, and the condition Unused
ephemeral    claims of generic ephemeral volumes
provisioner  volumes for simulated nodes: the StorageClass `simulated`
"""
