"""Conversion: kinds that are served in several versions and stored in one, and older field names.

The server converts where a request comes in and where a reply leaves; everything between sees the
stored form.

    hub.py                    conversion between served kinds and the stored kind (the hub)
    beta_versions.py          resource.k8s.io/v1beta1 and autoscaling/v1
    field_mapping.py          mapping of fields between two versions
    aliases.py                older names of fields that requests may use
    alias_resolution.py       requests rewritten to the stored names
    workload_references.py    values that have another form under an older name
"""
