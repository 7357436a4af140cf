"""What is wrong with many replies of a policy, whatever their rewards: no room, cut, or unread.

Then limits or form are wrong, and an adapter that seems never to act or to end was not understood.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.records import ActionKind, Trajectory
from reward.group_signal import had_no_room

MANY = 0.25
"""The share of replies that were cut, or had nothing to run, from which a person is told. Of the
default adapter's it is below a twentieth."""
_SHOWN = 80  # characters of such a reply


def reply_faults(trajectories: Sequence[Trajectory]) -> tuple[str, ...]:
    """A sentence for each fault, with the setting that mends it; none where few replies have it."""
    turns = [turn for t in trajectories for turn in t.turns]
    no_room = sum(map(had_no_room, trajectories))
    cut = sum(turn.finish_reason == "length" for turn in turns)
    unread = [turn.text for turn in turns if turn.action.kind is ActionKind.NONE]
    said = []
    if no_room:
        said.append(
            f"{no_room} of {len(trajectories)} episodes had no room for a reply behind what their"
            " environment begins with: raise engine.max_model_len."
        )
    if cut > MANY * len(turns):
        said.append(
            f"{cut} of {len(turns)} replies were cut at rollout.max_new_tokens: raise it, or turn"
            " long reasoning off (model.chat_template_kwargs)."
        )
    if len(unread) > MANY * len(turns):
        said.append(
            f"{len(unread)} of {len(turns)} replies had nothing to run, such as"
            f" {unread[0][:_SHOWN]!r}."
        )
    return tuple(said)
