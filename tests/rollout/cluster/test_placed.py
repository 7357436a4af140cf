"""What puts a command on a node: its words, and that asking for them loads nothing of a cluster."""

from __future__ import annotations

import subprocess
import sys

from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.placed import prefix
from scripts.base.checkout import ROOT


def test_the_words_before_a_command_say_where_what_and_how_much() -> None:
    cluster = ClusterSettings(
        kind="ray", address="10.0.0.1:6379", trainer_needs={"GPU": 2.0}, room_seconds=7.0
    )
    assert prefix(cluster, "trainer_needs", "the trainer") == [
        *(sys.executable, "-P", "-m", "rollout.cluster.run_there"),
        *("--address", "10.0.0.1:6379", "--key", "trainer_needs", "--what", "the trainer"),
        *("--needs", '{"GPU": 2.0}', "--room-seconds", "7.0", "--"),
    ]


def test_the_train_phase_of_one_box_loads_no_more_of_a_cluster() -> None:
    told = (
        "import sys; from scripts.phases import train; "
        "print(*sorted(m for m in sys.modules if m.startswith(('ray', 'rollout.cluster.'))))"
    )
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["rollout.cluster.cluster_settings", "rollout.cluster.placed"]
