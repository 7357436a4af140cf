#!/usr/bin/env bash
# The loop of `grpo run`, to be read aloud: ask what is next, do it, until there is nothing left.
# Every phase is a program that reads and writes files, so this may be killed at any moment and
# started again. Under nohup:   nohup scripts/grpo_loop.sh RUN > loop.log 2>&1 &
# Ctrl-C once finishes the step, twice stops now. Exit codes are those of `grpo`. The first phase
# that fails ends it; `grpo run` does one once more where that may help.
set -euo pipefail
RUN=${1:?usage: grpo_loop.sh RUN [--sandbox none]}
BIN="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"
grpo() { "$BIN/grpo" "$@"; }
if [ "${GRPO_LOOP:-}" != $$ ]; then # start again under the same pid, with the run's lock in hand
    export GRPO_LOOP=$$             # all phases of one loop: their seconds may be added up
    exec "$BIN/python" -P -m scripts.run.lock "$RUN" bash "$0" "$@"
fi
shift # what is left is said to every phase

asked=0 phase_pid='' # how often a person asked to end; the phase that runs
ask() {
    asked=$((asked + 1))
    case $asked in
        1) echo "finishing this step; Ctrl-C again stops now (both can be resumed)" || true ;;
        2) [ -z "$phase_pid" ] || kill "$phase_pid" 2> /dev/null || true ;;
    esac
}
trap ask INT
trap '[ "$asked" -gt 0 ] || ask' HUP # comes twice; nohup leaves it ignored, which cannot be trapped
trap 'asked=1; ask' TERM
finish() { # nothing of an engine outlives the loop; what went wrong before has the first word
    local code=$? stopped=0
    trap '' INT HUP TERM
    grpo stop "$RUN" || stopped=$?
    exit $((code ? code : stopped))
}
trap finish EXIT

while :; do
    phase=$(trap "" INT HUP && grpo next "$RUN") || exit $?
    [ "$phase" = done ] && break
    case $asked-$phase in 0-* | 1-train) ;; *) exit 130 ;; esac
    # In the background it is deaf to Ctrl-C, and a trap need not wait for its end. It ends with us.
    setpriv --pdeathsig TERM "$BIN/grpo" "$phase" "$RUN" "$@" &
    phase_pid=$!
    [ "$asked" -lt 2 ] || kill "$phase_pid"
    while kill -0 "$phase_pid" 2> /dev/null; do wait "$phase_pid" || true; done
    wait "$phase_pid" && code=0 || code=$?
    phase_pid='' # its number may be a stranger's from now on
    [ "$asked" -lt 2 ] || exit 130
    [ "$code" = 0 ] || exit "$code"
done
grpo table "$RUN"
