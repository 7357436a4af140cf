"""What counts as a command, what as a stop, and what as neither."""

import time

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Action, ActionKind
from rollout.envs.shell_protocol import (
    NO_ACTION_OBSERVATION,
    PROTOCOLS,
    parse_action,
    parse_literal,
)

DONE, RUN, NONE = ActionKind.DONE, ActionKind.RUN, ActionKind.NONE

# One block whose whole text is the left column.
BLOCKS: list[tuple[str, ActionKind]] = [
    # the bare echo, in the forms that say the same
    ('echo "Task complete."', DONE),
    ('echo "Task complete"', DONE),
    ("echo 'Task complete.'", DONE),
    ("echo 'Task complete'", DONE),
    ("echo Task complete.", DONE),
    ("echo Task complete", DONE),
    ("echo Task Complete", DONE),
    ('echo "Task Complete."', DONE),
    ('echo "task complete"', DONE),
    ('echo "TASK COMPLETE"', DONE),
    ("echo TASK_COMPLETE", DONE),
    ('echo "TASK_COMPLETE"', DONE),
    ("echo 'TASK_COMPLETE.'", DONE),
    ("echo task_complete", DONE),
    ('echo "Task complete!"', DONE),
    ('echo "Task complete." # all files written', DONE),
    ('echo "Task complete" # done > status.txt', DONE),
    ("echo Task complete # done", DONE),
    ("echo TASK_COMPLETE #done", DONE),
    ('echo "Task complete.";', DONE),
    ('echo "Task complete." ; # done', DONE),
    ('echo -n "Task complete."', DONE),
    ('echo -e "Task complete."', DONE),
    ("echo -ne 'Task complete'", DONE),
    ('   echo   "Task complete."   ', DONE),
    ('\n\necho "Task complete."\n\n', DONE),
    ('# everything is in place\necho "Task complete."', DONE),
    ('echo "Task complete."\n# nothing is left to do', DONE),
    ('echo "Task complete."\r', DONE),
    # a redirection or a pipe changes something: still a command
    ('echo "Task complete." > status.txt', RUN),
    ('echo "Task complete.">status.txt', RUN),
    ("echo Task complete. > status.txt", RUN),
    ("echo TASK_COMPLETE > done", RUN),
    ('echo "Task complete." >> log', RUN),
    ("echo Task complete >>log # append", RUN),
    ('echo "Task complete." | tee x', RUN),
    ('echo "Task complete." | tee -a log.txt', RUN),
    ("echo 'Task complete.' | cat", RUN),
    ('echo "Task complete." 2>/dev/null', RUN),
    ('echo "Task complete." >&2', RUN),
    ('> status.txt echo "Task complete."', RUN),
    ('echo "Task complete." <<< x', RUN),
    # more than one command is not a bare echo
    ('touch a && echo "Task complete."', RUN),
    ('echo "Task complete." && touch a', RUN),
    ('echo "Task complete." || true', RUN),
    ('touch a; echo "Task complete."', RUN),
    ('echo "Task complete."; touch a', RUN),
    ('touch a\necho "Task complete."', RUN),
    ('echo "Task complete."\ntouch a', RUN),
    ('echo "Task complete." &', RUN),
    ('(echo "Task complete.")', RUN),
    ('if true; then echo "Task complete."; fi', RUN),
    # other ways to say it
    ('printf "Task complete.\\n"', RUN),
    ("printf 'TASK_COMPLETE'", RUN),
    ("cat <<EOF\nTask complete.\nEOF", RUN),
    ("cat > status.txt <<'EOF'\nTASK_COMPLETE\nEOF", RUN),
    ("TASK_COMPLETE", RUN),
    ("# TASK_COMPLETE", NONE),
    ("# nothing is left to do\n\n  # at all", NONE),
    ("# list them\nls", RUN),
    ('/bin/echo "Task complete."', RUN),
    ('$ echo "Task complete."', RUN),
    ("exit 0", RUN),
    # other things to say
    ('echo "Task completed."', DONE),
    ("echo TASK_COMPLETED", DONE),
    ('echo "Task completed." > status.txt', RUN),
    ('echo "Task completely done."', RUN),
    ('echo "Task is complete."', RUN),
    ('echo "The task complete."', RUN),
    ('echo "Task complete: 3 files"', RUN),
    ("echo Task complete#1", RUN),
    ("echo Task", RUN),
    ("echo complete", RUN),
    ('echo "Task complete.', RUN),
    ("echo \"Task complete.'", RUN),
    ('echo "$(rm -r a)Task complete."', RUN),
    ('echo "Task complete." "$X"', RUN),
    ("echoTask complete", RUN),
    ('echo ""', RUN),
]


def test_the_table_has_at_least_forty_different_forms() -> None:
    assert len({block for block, _ in BLOCKS}) == len(BLOCKS) >= 40


@pytest.mark.parametrize(("block", "kind"), BLOCKS)
def test_only_a_bare_echo_of_the_phrase_stops(block: str, kind: ActionKind) -> None:
    action = parse_action(f"```bash\n{block}\n```")
    assert action.kind is kind
    assert action.command == (block.strip("\n") if kind is RUN else "")


@pytest.mark.parametrize("block", [block for block, kind in BLOCKS if kind is not NONE])
def test_the_literal_protocol_runs_every_block(block: str) -> None:
    assert parse_literal(f"```bash\n{block}\n```").kind is RUN


LS = Action(RUN, "ls")
STOP = Action(DONE, "")
NOTHING = Action(NONE, "")

REPLIES: list[tuple[str, str, Action]] = [
    ("the word alone", "TASK_COMPLETE", STOP),
    ("the word in a sentence", "I am finished, so TASK_COMPLETE.", NOTHING),
    ("not yet", "Not TASK_COMPLETE yet.", NOTHING),
    ("the word after a sentence", "All files are there.\n\nTASK_COMPLETE.", STOP),
    ("the word as a heading", "## TASK_COMPLETE", STOP),
    ("the word in a list", "1. ls\n2. TASK_COMPLETE", STOP),
    ("the word in a quote", "> TASK_COMPLETE", STOP),
    ("the word with spaces around it", "  TASK_COMPLETE  \n", STOP),
    ("the word after a byte order mark", "\ufeffTASK_COMPLETE", STOP),
    ("the word in thoughts", "<think>\nTASK_COMPLETE\n</think>\nLet me look.", NOTHING),
    ("the word after thoughts", "<think>Is it done?</think>\nTASK_COMPLETE", STOP),
    ("the word right after thoughts", "<think>\ndone\n</think> TASK_COMPLETE", STOP),
    ("the word in thoughts without an end", "<think>\nTASK_COMPLETE\n", NOTHING),
    ("thoughts that the prompt began", "TASK_COMPLETE?\nTASK_COMPLETE\n</think>\nls", NOTHING),
    ("a command in thoughts", "<think>\n```bash\nrm a\n```\n</think>\n```bash\nls\n```", LS),
    ("thoughts in a command", "```bash\necho '<think>'\n```", Action(RUN, "echo '<think>'")),
    (
        "the end of thoughts in a command",
        "```bash\necho '</think>' > a\n```",
        Action(RUN, "echo '</think>' > a"),
    ),
    ("a command after a byte order mark", "\ufeff```bash\nls\n```", LS),
    ("a block of comments, then another", "```bash\n# look\n```\n```bash\nls\n```", LS),
    ("a block in a list", "1. ```bash\n   ls\n   ```\n2. then", LS),
    ("a block in a dash list", "- ```bash\n  ls\n  ```", LS),
    ("a block below a list item", "- Look:\n\n  ```bash\n  ls\n  ```", Action(RUN, "  ls")),
    ("a block in a quote", "> ```bash\n> ls\n> ```", LS),
    ("a block in a nested quote", "> > ```bash\n> > ls\n> > ```\n", LS),
    ("a redirection at a line's start", "```bash\n> a.txt\n```", Action(RUN, "> a.txt")),
    ("the word in bold", "**TASK_COMPLETE**", STOP),
    ("the word in underscores", "__TASK_COMPLETE__", STOP),
    ("the word as inline code", "`TASK_COMPLETE`", STOP),
    ("the word in another case", "Task_Complete", NOTHING),
    ("what models write in its place", "TASK_COMPLETED", STOP),
    ("the same with a full stop", "TASK_COMPLETED.", STOP),
    ("a longer word", "TASK_COMPLETENESS", NOTHING),
    ("the participle in prose", "Task completed.", NOTHING),
    ("a part of a name", "MY_TASK_COMPLETE=1", NOTHING),
    ("the phrase in prose", "Task complete.", NOTHING),
    ("an echo in prose", 'echo "Task complete."', NOTHING),
    ("prose only", "I would list the files.", NOTHING),
    ("an empty reply", "", NOTHING),
    ("a command", "```bash\nls\n```", LS),
    ("prose around a command", "First:\n```bash\nls\n```\nThen more.", LS),
    ("two blocks", "```bash\nls\n```\n```bash\nrm a\n```", LS),
    ("a stop in the second block", "```bash\nls\n```\n```bash\necho TASK_COMPLETE\n```", LS),
    ("a stop in the first block", "```bash\necho TASK_COMPLETE\n```\n```bash\nls\n```", STOP),
    ("a command, then the word", "```bash\nls\n```\nTASK_COMPLETE", Action(DONE, "ls")),
    ("the word, then a command", "TASK_COMPLETE\n```bash\nls\n```", Action(DONE, "ls")),
    ("both ways to stop", "```bash\necho Task complete\n```\nTASK_COMPLETE", STOP),
    ("the word in a text fence", "```text\nTASK_COMPLETE\n```", NOTHING),
    ("the word in a bare fence", "```\nTASK_COMPLETE\n```", NOTHING),
    ("a bare fence", "```\nls\n```", NOTHING),
    ("a python fence", "```python\nprint(1)\n```", NOTHING),
    ("a text fence, then bash", "```text\na plan\n```\n```bash\nls\n```", LS),
    ("an unclosed fence", "```bash\nrm -r build", NOTHING),
    ("an unclosed fence that says it", '```bash\necho "Task complete."', NOTHING),
    ("the word in an unclosed fence", "```bash\nls\nTASK_COMPLETE", NOTHING),
    ("an unclosed second fence", "```bash\nls\n```\n```bash\nrm -r bu", LS),
    ("an empty block", "```bash\n```", NOTHING),
    ("a blank block", "```bash\n  \n```", NOTHING),
    ("a capital B", "```Bash\nls\n```", LS),
    ("another shell", "```sh\nls\n```", NOTHING),
    ("bash as a prefix", "```bashful\nls\n```", NOTHING),
    ("a title after the language", "```bash title=x\nls\n```", LS),
    ("an indented block", "  ```bash\n  ls\n  ```", Action(RUN, "  ls")),
    ("a longer fence", "````bash\ncat <<E\n```\nE\n````", Action(RUN, "cat <<E\n```\nE")),
    ("a closing fence with a word", "```bash\nls\n```done\n```", Action(RUN, "ls\n```done")),
    ("a block on one line", "```bash ls```", NOTHING),
    ("windows line ends", "```bash\r\nls\r\n```\r\n", LS),
]


@pytest.mark.parametrize(
    ("reply", "expected"), [pytest.param(r, a, id=name) for name, r, a in REPLIES]
)
def test_a_reply_is_read_as(reply: str, expected: Action) -> None:
    assert parse_action(reply) == expected


def test_a_command_of_several_lines_stays_whole() -> None:
    command = "for f in *.txt; do\n\n  wc -l $f\ndone"
    assert parse_action(f"```bash\n{command}\n```") == Action(RUN, command)


@pytest.mark.parametrize(
    "reply",
    [
        "```bash\necho " + " " * 50_000 + "x\n```",
        "```bash\necho Task complete" + " " * 50_000 + "x\n```",
        '```bash\necho "Task complete' + " " * 50_000 + "x\n```",
        "```bash\necho" + " -n" * 20_000 + "\n```",
        "```" + " " * 50_000 + "`",
        "`" * 50_000 + "\n" + "_" * 50_000,
        "```bash\n" * 10_000,
        "> " * 50_000 + "x",
        "1. " * 50_000 + "x",
        "</think>x" * 10_000,
        "</think>\n" * 10_000,
        "<think>" * 10_000,
        "* " * 50_000,
        " " * 100_000 + "x",
    ],
)
def test_reading_a_hostile_reply_takes_no_time(reply: str) -> None:
    began = time.process_time()
    assert parse_action(reply).kind is not DONE
    assert time.process_time() - began < 0.5


def test_the_literal_protocol_knows_no_other_word() -> None:
    assert parse_literal("TASK_COMPLETED") == NOTHING
    assert parse_literal("TASK_COMPLETE") == STOP


def test_the_observation_without_an_action_shows_a_form_that_works() -> None:
    assert parse_literal(NO_ACTION_OBSERVATION) == Action(RUN, "COMMAND")


def test_an_unknown_protocol_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'sentinel'"):
        PROTOCOLS.named("sentinal")
