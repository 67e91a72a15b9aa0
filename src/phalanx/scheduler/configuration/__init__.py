"""Settings: a policy as people write it, in the form of a KubeSchedulerConfiguration."""
