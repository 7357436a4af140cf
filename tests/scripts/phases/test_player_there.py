"""The player of a rollout worker: the servers that it asks."""

from __future__ import annotations

from rollout.engine.target import Served
from scripts.phases.player_there import in_turn


def test_each_worker_begins_with_another_server_and_knows_no_process_of_them() -> None:
    def served(name: str) -> Served:
        return Served("", "", "run-v1", "run-v1", None, 7, "hotswap", "", None, name=name)

    seen = [in_turn([served(name) for name in "abc"], number) for number in range(4)]
    assert ["".join(s.name for s in each) for each in seen] == ["abc", "bca", "cab", "abc"]
    assert {s.pid for each in seen for s in each} == {None}
