from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval import AgentRun


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{torn", "runs.jsonl:2: "),
        ("[]", "runs.jsonl:2: expected an object, found list"),
        ('{"inference_results": [3]}', "runs.jsonl:2: inference_results.0: expected an object"),
        ('{"inference_results": [{"turn_details": 3}]}', "turn_details: expected a list"),
        ('{"inference_results": [{"turn_details": [3]}]}', "turn 1: expected an object"),
        (
            '{"inference_results": [{"turn_details": [{"input_tokens": "x"}]}]}',
            "turn 1.input_tokens: expected a finite number, found 'x'",
        ),
        (
            '{"inference_results": [{"turn_details": [{"input_tokens": 1e999}]}]}',
            "turn 1.input_tokens: expected a finite number, found inf",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(BadInput, match=said):
        AgentRun.from_jsonl(path)
