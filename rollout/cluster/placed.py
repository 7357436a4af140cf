"""How a command is put on a node of the cluster, and how it tells that it lost its node.

Apart from `rollout.cluster.run_there`, which obeys it, because the train phase asks for both on one
box too, where nothing of a cluster is loaded.
"""

from __future__ import annotations

import json
import sys

from rollout.cluster.cluster_settings import ClusterSettings

LOST = 75
"""Exit code where the node is lost that the program ran on, so that another may run it."""


def prefix(cluster: ClusterSettings, key: str, what: str) -> list[str]:
    """The words before a command that is to run on a node.

    key: the setting with what it needs, such as "trainer_needs". what: it in words, for messages.
    """
    return [
        *(sys.executable, "-P", "-m", "rollout.cluster.run_there"),
        *("--address", cluster.address, "--key", key, "--what", what),
        *("--needs", json.dumps(getattr(cluster, key))),
        *("--room-seconds", str(cluster.room_seconds), "--"),
    ]
