"""Let a model grade an answer by a rubric, over any OpenAI-compatible endpoint.

The endpoint is asked for JSON of a schema; one that does not know schemas is asked without. Scores
that a model gives are opinions: where an answer can be checked by text or files, check it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from fieldkit.client.chat import ChatError, ChatHTTPError
from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.atomic import append_line, read_lines
from fieldkit.files.json_text import parse_json

_FORM = 'Answer with one JSON object and nothing else: {"score": <number>, "rationale": "<why>"}'

RUBRIC_CORRECTNESS: str = (
    "You grade a predicted answer against a reference answer, on a scale of 0 to 5. 5: says the "
    "same. 4: the same but for unimportant wording. 3: a part of it is right. 2: mostly wrong, "
    f"with something right in it. 1: wrong or about something else. 0: empty or a refusal. {_FORM}"
)
"""The system text that grades a prediction against a reference answer, 0 to 5."""
RUBRIC_FAITHFULNESS: str = (
    "You grade whether an answer keeps to the context passages it was given. 1.0: the context "
    "supports every claim. 0.5: it supports some. 0.0: it supports none. An answer that refuses, "
    "or says that the context does not tell: 0.5 where the context does not tell, else 0.0. "
    f"{_FORM}"
)
"""The one that grades whether an answer keeps to its context passages, 0 to 1."""
RUBRIC_RELEVANCE: str = (
    "You grade whether an answer addresses its question. 1.0: it does. 0.5: in part, or it hedges. "
    f"0.0: it is about something else, or refuses. {_FORM}"
)
"""The one that grades whether an answer addresses its question, 0 to 1."""
BUILTIN_RUBRICS: dict[str, str] = {
    "correctness": RUBRIC_CORRECTNESS,
    "faithfulness": RUBRIC_FAITHFULNESS,
    "relevance": RUBRIC_RELEVANCE,
}
"""The system texts of the built-in rubrics by name: correctness, faithfulness, relevance."""
_SCALES = {RUBRIC_CORRECTNESS: (0.0, 5.0)}
_SCALES |= dict.fromkeys((RUBRIC_FAITHFULNESS, RUBRIC_RELEVANCE), (0.0, 1.0))

# As in `**Score:** 4`, and in a JSON object that is cut short; not of a "subscore".
_SCORE = re.compile(r'(?<![\w-])score["*_]*\s*[:=][\s"*_]*(-?\d+(?:\.\d+)?)', re.IGNORECASE)
_BRACE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)


class JudgeError(FieldkitError):
    """The judge could not be asked, or its score lies outside the rubric's scale."""

    exit_code = 4


class Chats(Protocol):
    """What a judge needs of a client; `fieldkit.client.ChatClient` is one."""

    model: str

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        """As `fieldkit.client.ChatClient.chat`."""
        ...


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """One opinion. score: None where the reply holds none. raw: the reply as it came."""

    score: float | None
    rationale: str
    raw: str


@dataclass
class Judge:
    """Grades answers by `rubric`, one of `BUILTIN_RUBRICS` or a system text of one's own.

    client: a `fieldkit.client.ChatClient`, whose retries apply. max_tokens, temperature: as for its
    `chat`; a model that thinks before it grades needs more tokens. scale: lowest and highest score;
    known for the built-in rubrics, and None accepts any number. cache: a JSONL file in which
    replies are kept, so that the same question is not asked twice; without one they are kept
    while this judge lives. It knows a judge by its model's name, wherever that is served: another
    model under one name needs a file of its own.
    """

    client: Chats
    rubric: str = RUBRIC_CORRECTNESS
    max_tokens: int | None = 160
    temperature: float | None = 0.0
    scale: tuple[float, float] | None = None
    cache: str | Path | None = None
    _replies: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _schema_known: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        self.scale = self.scale or _SCALES.get(self.rubric)
        if self.cache is not None and Path(self.cache).is_file():
            self._replies = dict(_cached(Path(self.cache)))

    @classmethod
    def builtin(cls, client: Chats, kind: str, **kwargs: Any) -> Judge:
        """A judge with a built-in rubric: "correctness", "faithfulness" or "relevance".

        kwargs: as for the class. Raises `BadInput` for another kind.
        """
        if kind not in BUILTIN_RUBRICS:
            raise BadInput(f"rubric {kind!r} is unknown; known: {', '.join(BUILTIN_RUBRICS)}")
        return cls(client, BUILTIN_RUBRICS[kind], **kwargs)

    def grade(
        self,
        *,
        prediction: str,
        question: str | None = None,
        reference: str | None = None,
        context: str | None = None,
    ) -> JudgeResult:
        """Grade one prediction, with as much of the rest as the rubric needs.

        A reply without a score gives `score` None and is not cached. Raises `JudgeError`.
        """
        parts = {
            "Question": question,
            "Context passages": context,
            "Reference answer": reference,
            "Predicted answer": prediction,
        }
        asked = "\n\n".join(f"{k}:\n{v}" for k, v in parts.items() if v is not None)
        key = self._key(asked)
        raw = self._replies.get(key)
        known = raw is not None
        if raw is None:
            raw = self._ask(asked)
        result = self.parse(raw)
        if result.score is None:
            return result
        if self.scale and not self.scale[0] <= result.score <= self.scale[1]:
            low, high = self.scale
            raise JudgeError(f"the judge's score {result.score:g} is not in {low:g} to {high:g}")
        if not known:
            self._keep(key, raw)
        return result

    @staticmethod
    def parse(raw: str) -> JudgeResult:
        """The score and rationale of a reply: of the last JSON object in it that has a score, for a
        model may think aloud before; else of the last "score: N"."""
        for found in reversed(list(_objects(raw))):
            score = _number(found.get("score"))
            if score is not None:
                return JudgeResult(score, str(found.get("rationale", "")), raw)
        named = _SCORE.findall(raw)
        return JudgeResult(_number(named[-1]) if named else None, raw.strip(), raw)

    def _ask(self, asked: str) -> str:
        messages = [
            {"role": "system", "content": self.rubric},
            {"role": "user", "content": asked},
        ]
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        try:
            answer = self._answer(messages, options)
            text = answer["choices"][0]["message"]["content"] or ""
        except ChatError as e:
            raise JudgeError(f"the judge could not be asked: {e}") from e
        except (KeyError, IndexError, TypeError) as e:
            raise JudgeError(f"the judge's answer has no message content ({e!r})") from None
        return str(text)

    def _answer(self, messages: Any, options: dict[str, Any]) -> dict[str, Any]:
        if self._schema_known:
            try:
                return self.client.chat(messages, **options, response_format=self._schema())
            except ChatHTTPError as e:
                if e.status_code not in (400, 422):
                    raise
            # It may be the schema that the endpoint refuses; if it is the request, so is the next.
            answer = self.client.chat(messages, **options)
            self._schema_known = False
            return answer
        return self.client.chat(messages, **options)

    def _schema(self) -> dict[str, Any]:
        score: dict[str, Any] = {"type": "number"}
        if self.scale:
            score |= {"minimum": self.scale[0], "maximum": self.scale[1]}
        schema = {
            "type": "object",
            "properties": {"score": score, "rationale": {"type": "string"}},
            "required": ["score", "rationale"],
            "additionalProperties": False,
        }
        return {"type": "json_schema", "json_schema": {"name": "grade", "schema": schema}}

    def _key(self, asked: str) -> str:
        what = [self.client.model, self.rubric, asked, self.max_tokens, self.temperature]
        return sha256(json.dumps(what).encode()).hexdigest()

    def _keep(self, key: str, raw: str) -> None:
        self._replies[key] = raw
        if self.cache is not None:
            append_line(Path(self.cache), json.dumps({"key": key, "reply": raw}))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in order, but for those inside another."""
    start = text.find("{")
    while start >= 0:
        end = _end_of_object(text, start)
        try:
            yield parse_json(text[start:end], "reply")
        except ValueError:
            end = start + 1
        start = text.find("{", end)


def _end_of_object(text: str, start: int) -> int:
    depth = 0
    for found in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)


def _number(value: Any) -> float | None:
    """A finite number, also one in quotes; None for anything else."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _cached(path: Path) -> Mapping[str, str]:
    found = {}
    for number, line in read_lines(path):
        value = parse_json(line, f"{path}:{number}")
        try:
            found[str(value["key"])] = str(value["reply"])
        except (ValueError, KeyError, TypeError) as e:
            raise BadInput(f"{path}:{number}: not a judge's reply ({e!r})") from None
    return found
