from __future__ import annotations

from fieldkit.files.journal import Entry
from scripts.report.provenance import used
from scripts.run.config import NightSettings, RunConfig
from tests.scripts.made_night import summary


def rows(manifest: dict[str, object]) -> dict[str, str]:
    return {
        r[0]: r[1] for t in used(manifest, [summary(0, 1), summary(1, 1)]).tables for r in t.rows
    }


def test_settings_that_differ_from_the_defaults_are_marked() -> None:
    config = RunConfig(run=NightSettings(steps=7)).plain()
    found = used({"config": config}, ())
    assert found.chosen == {"run.steps"}
    assert rows({"config": config})["run.steps"] == "7"


def test_hashes_of_model_and_data_are_told_shortened() -> None:
    manifest: dict[str, object] = {
        "model": {"dir": "/m", "files": {"model.safetensors": "ab" * 32}},
        "data": {"pool": {"path": "pool.jsonl", "n": 42, "sha256": "cd" * 32}},
    }
    told = rows(manifest)
    assert told["model.safetensors"] == "ab" * 8
    assert told["pool"] == "cd" * 8


def test_tasks_that_joined_the_pool_are_told_with_their_step() -> None:
    grown = {
        "grown-001.jsonl": {"sha256": "ef" * 32, "n": 42, "step": 57},
        "grown-002.jsonl": {"sha256": "ab" * 32, "n": 8, "step": 90},
    }
    told = rows({"data": {"grown": grown}})["joined the pool"]
    assert told == "42 tasks of the reserve after step 57, 8 tasks of the reserve after step 90"


def test_the_adapters_at_both_ends_are_told_without_a_manifest() -> None:
    assert rows({})["adapter of step 1"] == "sha-1"


def test_adapters_are_counted_by_how_the_server_was_seen_to_serve_them() -> None:
    verdicts = [("a", "PROVEN"), ("b", "INDISTINGUISHABLE"), ("c", "INDISTINGUISHABLE")]
    verdicts += [("c", "PROVEN"), ("d", "NO_CANARY")]  # c again, by another server
    journal = [
        Entry(0.0, 1, "adapter_served", {"adapter_sha": sha, "verdict": verdict})
        for sha, verdict in verdicts
    ]
    (table,) = used({}, (), journal).tables
    told = "2 proven by the server's answers, 2 known by name and hash alone"
    assert table.rows == (("adapters served", told),)


def test_a_manifest_of_another_shape_loses_rows_and_raises_nothing() -> None:
    assert rows({"model": "gone", "hardware": [], "versions": None}) == rows({})
