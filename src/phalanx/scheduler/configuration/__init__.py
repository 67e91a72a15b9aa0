"""The scheduler configuration: KubeSchedulerConfiguration files parsed into profiles.

scheduler_configuration     decodes and validates a whole file
plugin_selection            enabled plugins, weights, the policy of a profile
"""
