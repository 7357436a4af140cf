from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval import Bench, summarize_metric


def test_a_number_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(BadInput, match="nan is not a finite number"):
        summarize_metric([1.0, math.nan])


def test_a_bench_that_cannot_be_written_whole_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("old")
    bench = Bench("b")
    bench.record(input={("a", "tuple"): "key"}, latency_ms=1.0)
    with pytest.raises(TypeError):
        bench.dump(path)
    assert path.read_text() == "old"


def test_inputs_that_json_lacks_are_written_all_the_same(tmp_path: Path) -> None:
    bench = Bench("b").run(lambda path: {"seen": {path}}, [Path("a/b")])
    calls = json.loads(bench.dump(tmp_path / "b.json", include_outputs=True).read_text())["calls"]
    assert calls[0]["input"] == "a/b"


class Uncopied:
    """As what holds a lock or a generator."""

    def __init__(self) -> None:
        self.text = "hi"

    def __deepcopy__(self, memo: object) -> None:
        raise TypeError("cannot be copied")


@dataclass
class Reply:
    text: str


def test_a_finished_bench_is_kept_whatever_its_calls_gave(tmp_path: Path) -> None:
    given = [Uncopied(), Reply("a"), [Reply("b")], {"c": Reply("c")}, Reply]
    bench = Bench("b").run(lambda i: given[i], range(5))
    assert all("output" not in call for call in bench.to_dict()["calls"])
    dumped = json.loads(bench.dump(tmp_path / "b.json", include_outputs=True).read_text())
    outputs = [call["output"] for call in dumped["calls"]]
    assert outputs[:4] == [{"text": "hi"}, {"text": "a"}, [{"text": "b"}], {"c": {"text": "c"}}]
    assert dumped["summary"]["n_success"] == 5


def test_a_metric_that_is_not_finite_costs_the_summary_and_not_the_calls(tmp_path: Path) -> None:
    bench = Bench("b", metrics=["loss"]).run(lambda loss: {"loss": loss}, [1.0, math.nan])
    with pytest.raises(BadInput, match="nan is not a finite number"):
        bench.summary()
    dumped = json.loads(bench.dump(tmp_path / "b.json").read_text())
    assert dumped["summary"]["error"].startswith("nan is not a finite number")
    assert dumped["calls"][0]["input"] == 1.0


def test_a_call_without_the_part_that_holds_its_metrics_is_timed_all_the_same() -> None:
    outputs = [{"usage": {"tokens": 3}}, {"usage": "unknown"}, {}, None]
    bench = Bench("b", metrics=["tokens"], metrics_key="usage").run(lambda o: o, outputs)
    assert [call.metrics for call in bench.calls] == [{"tokens": 3.0}, {}, {}, {}]
    assert bench.summary()["tokens"]["n"] == 1
