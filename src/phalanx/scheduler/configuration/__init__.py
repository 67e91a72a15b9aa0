"""The scheduler configuration: KubeSchedulerConfiguration files parsed into profiles.

scheduler_configuration     parses and validates a whole file
plugin_selection            enabled plugins, weights, the policy of a profile
profiles                    policies by scheduler name
strict_decoding             structs from YAML, with a cause for every mismatch
"""
