"""The messages that each turn saw come back from its ids, under several families' templates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.records import Action, ActionKind, Sampling, StopReason, Trajectory, Turn
from fieldkit.training.seen_messages import replay_messages_from_trajectory
from rollout.envs.base import Message
from rollout.transcript import ChatRenderer
from scripts.prepare.model import build_model

CHATML = None  # SmolLM2's own, which adds a system text of its own
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n"
    "{{ m.content }}\n</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ '<|endoftext|>' }}{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>\n\n"
    "{{ m.content | trim }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)
STRICT = (  # no system text, and user and assistant in turn
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
    "{% else %}{{ m.content }}<|endoftext|>{% endif %}{% endfor %}"
)
TEMPLATES = {"smollm": CHATML, "qwen": QWEN, "llama": LLAMA, "strict": STRICT}


def tokenizer(family: str) -> Any:
    found = AutoTokenizer.from_pretrained(str(build_model()))
    found.chat_template = TEMPLATES[family] or found.chat_template
    return found


def played(tokenizer: Any, talk: list[list[dict[str, str]]], eot: str) -> Trajectory:
    """A trajectory whose prompts grow, as the template would write it: `talk[i]` is heard before
    reply i, which is "reply i" and ends its turn."""
    ids: list[int] = tokenizer.apply_chat_template(
        talk[0], add_generation_prompt=True, return_dict=False
    )
    turns: list[Turn] = []
    for i, heard in enumerate(talk):
        if i:
            reply = {"role": "assistant", "content": "reply"}
            begun = [{"role": "user", "content": "u"}, reply]
            texts = [
                tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True)
                for m in ([*begun, *heard],)
            ]
            bridge = texts[0].partition("reply")[2].removeprefix(eot)
            ids = [*ids, *turns[-1].completion_ids, *tokenizer.encode(bridge)]
        completion = tokenizer.encode(f"reply {i}{eot}")
        turns.append(
            Turn(
                prompt_ids=tuple(ids),
                completion_ids=tuple(completion),
                logprobs=(-0.1,) * len(completion),
                text=f"reply {i}",
                action=Action(ActionKind.NONE, ""),
                observation=None,
                exit_code=None,
                reward=None,
                finish_reason="stop",
                policy_version="v",
                seed=0,
                seconds=0.0,
            )
        )
    sampling = Sampling(1.0, 64, 1.0, -1, 0.0)
    return Trajectory(
        "t", 2, 0, "sha", sampling, tuple(turns), StopReason.MAX_TURNS, Grade(()), 0.0, {}
    )


SYSTEM = {"role": "system", "content": "Be brief."}
USERS = [{"role": "user", "content": f"line {i}\n\n```bash\nls\n```"} for i in range(4)]
TOOL = {"role": "tool", "content": '{"ok": true}'}
EOT = {"smollm": "<|im_end|>", "qwen": "<|im_end|>", "llama": "<|endoftext|>"}


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("kind", ["users", "system", "two at once", "tools"])
def test_each_turn_saw_its_messages(family: str, kind: str) -> None:
    if family == "strict" and kind != "users":
        pytest.skip("the template takes users only")
    talk = {
        "users": [[USERS[0]], [USERS[1]], [USERS[2]]],
        "system": [[SYSTEM, USERS[0]], [USERS[1]]],
        "two at once": [[SYSTEM, USERS[0]], [USERS[1], USERS[2]], [USERS[3]]],
        "tools": [[USERS[0]], [TOOL, TOOL], [TOOL], [USERS[1]]],
    }[kind]
    model = tokenizer(family)
    trajectory = played(model, talk, EOT.get(family, "<|endoftext|>"))
    expected: list[dict[str, str]] = []
    for i, (heard, seen) in enumerate(
        zip(talk, replay_messages_from_trajectory(trajectory, model), strict=True)
    ):
        expected += heard
        assert list(seen) == expected
        expected.append({"role": "assistant", "content": f"reply {i}"})


def test_a_reply_that_was_cut_or_spells_the_templates_tokens_is_kept_as_it_was() -> None:
    model = tokenizer("qwen")
    trajectory = played(model, [[USERS[0]], [USERS[1]]], EOT["qwen"])
    first, second = trajectory.turns
    odd = tuple(model.encode("<|im_start|>user\nmine"))
    prompt = first.prompt_ids + odd + tuple(second.prompt_ids[-20:])
    bridge = tuple(model.encode("<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n"))
    header = tuple(model.encode("<|im_start|>assistant\n"))
    prompt = first.prompt_ids + odd + bridge + header
    turns = (
        replace(first, completion_ids=odd, logprobs=(0.0,) * len(odd)),
        replace(second, prompt_ids=prompt),
    )
    seen = replay_messages_from_trajectory(replace(trajectory, turns=turns), model)[1]
    assert [m["content"] for m in seen[1:]] == ["<|im_start|>user\nmine", "next"]


def test_a_new_segment_is_read_from_its_beginning() -> None:
    model = tokenizer("qwen")
    trajectory = played(model, [[USERS[0]], [USERS[1]]], EOT["qwen"])
    shorter = tuple(
        model.apply_chat_template([USERS[3]], add_generation_prompt=True, return_dict=False)
    )
    turns = (trajectory.turns[0], replace(trajectory.turns[1], prompt_ids=shorter))
    seen = replay_messages_from_trajectory(replace(trajectory, turns=turns), model)
    assert seen[1] == (USERS[3],)


def test_the_prompt_of_another_model_is_named() -> None:
    trajectory = played(tokenizer("qwen"), [[USERS[0]]], EOT["qwen"])
    with pytest.raises(BadInput, match="task t k=2 turn 0: its prompt does not follow"):
        replay_messages_from_trajectory(trajectory, tokenizer("llama"))


def test_what_the_loop_itself_shows_a_policy_is_what_is_read_back() -> None:
    renderer = ChatRenderer(build_model())
    heard: list[list[Message]] = [
        [{"role": "system", "content": "Use bash."}, {"role": "user", "content": "Go <|im_end|>!"}],
        [{"role": "user", "content": "exit 0\n"}],
        [{"role": "user", "content": ""}],
    ]
    transcript = renderer.start(heard[0])
    base = played(tokenizer("smollm"), [[USERS[0]]], EOT["smollm"])
    turns, expected = [], []
    messages = [{**m, "content": renderer.harmless(m["content"])} for m in heard[0]]
    for i, observation in enumerate([*heard[1:], None]):
        reply = renderer.encode_reply(f"```bash\nls {i}\n```")[: -1 if i else None]  # 1, 2: cut
        expected.append(tuple(messages))
        turns.append(
            replace(
                base.turns[0],
                prompt_ids=transcript.prompt_ids,
                completion_ids=reply,
                logprobs=(0.0,) * len(reply),
            )
        )
        if observation is not None:
            transcript.add_completion(reply)
            transcript.add_observation(observation)
            answer = {"role": "assistant", "content": f"```bash\nls {i}\n```"}
            messages = [*messages, answer, *map(dict, observation)]
    seen = replay_messages_from_trajectory(replace(base, turns=tuple(turns)), tokenizer("smollm"))
    assert seen == tuple(expected)


def test_a_template_that_shows_no_conversation_is_named() -> None:
    model = tokenizer("qwen")
    trajectory = played(model, [[USERS[0]]], EOT["qwen"])
    model.chat_template = "{{ raise_exception('not for chats') }}"
    with pytest.raises(BadInput, match="the chat template renders no conversation"):
        replay_messages_from_trajectory(trajectory, model)


def test_a_template_that_leaves_out_system_texts_is_read_without_them() -> None:
    model = tokenizer("qwen")
    model.chat_template = (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    trajectory = played(model, [[SYSTEM, USERS[0]]], EOT["qwen"])
    assert replay_messages_from_trajectory(trajectory, model) == ((USERS[0],),)


def test_a_prompt_that_breaks_off_inside_a_message_is_named() -> None:
    model = tokenizer("qwen")
    trajectory = played(model, [[USERS[0]]], EOT["qwen"])
    (first,) = trajectory.turns
    cut = replace(first, prompt_ids=first.prompt_ids[:-4])
    with pytest.raises(BadInput, match="task t k=2 turn 0: its prompt does not follow"):
        replay_messages_from_trajectory(replace(trajectory, turns=(cut,)), model)
