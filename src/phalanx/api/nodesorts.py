"""By what a Node is known as one of ours, and of which sort: an annotation and its values.

A Node without it is somebody else's: nobody here pretends to be its kubelet.
"""

from __future__ import annotations

NODE_SORT = "phalanx.dev/node"
#: Nothing runs there; pods move through stages.
SIMULATED = "simulated"
#: The commands of pods run there as processes of the machine.
PROCESS = "process"
