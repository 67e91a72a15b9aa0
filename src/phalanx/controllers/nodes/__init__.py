"""Nodes: our own, simulated or of processes, with their kubelets; and any that fall silent."""
