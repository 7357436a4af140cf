"""The bench in its short form, on a real engine: rollouts and trainers, by their own programs.

`python -m tests.bench --short --rounds 1` is all of it, with the steps and TRL, in eight minutes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.files.atomic import read_json
from tests.bench import page, rollouts, trainers
from tests.bench.__main__ import main


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    """The bench changes what SIGTERM does to its process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.timeout(900)
def test_rollouts_and_trainers_are_measured_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainers, "sizes", lambda served: {})
    kept, out = tmp_path / "kept", tmp_path / "docs"
    parts = ["rollout", "trainer"]
    main(part=parts, rounds=1, short=True, kept=kept, out=out)
    found = read_json(out / "performance.json")
    of_parts = {name for name, ratio in page.RATIOS.items() if set(ratio.parts) <= set(parts)}
    assert found["ratios"].keys() == of_parts
    assert all(value > 0 for value in found["ratios"].values())
    assert found["settings"]["rollout"]["max_turns"] == 2
    by_name = {(m["part"], m["contestant"]): m for m in found["measurements"]}
    played = by_name[rollouts.PART, rollouts.ALL]
    assert played["episodes"] == 4
    assert played["engine"] > played["worlds"] > 0
    assert played["engine_peak_bytes"] > played["player_peak_bytes"] > 0
    ours, plain = (by_name[trainers.PART, name] for name in (trainers.OURS, trainers.PLAIN))
    assert ours["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=0.2)
    assert ours["peak_bytes"] > 0
    capfd.readouterr()
    main(part=parts, rounds=1, short=True, kept=kept, out=out)
    assert capfd.readouterr().err.count("bench:") == 1, "the page, and nothing measured again"
