"""Devices (dynamic resource allocation): what is published, what is in use, what claims get.

    state                claims, allocations and usage; what the claims of a pod require
    allocator            chooses devices of one node for claims
    requests             the requests of a claim, with classes and selectors
    usage                the devices in use
    inventory            pools and devices from ResourceSlices, DeviceClasses, taint rules
    extended_resources   extended resources that a DeviceClass serves, as claims
    selectors            CEL expressions over devices

Nodes are names here; `plugins/dynamic_resources.py` connects devices with a snapshot.
"""
