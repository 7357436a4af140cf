#!/usr/bin/env bash
# The loop of `grpo run`, to be read aloud: ask what is next, do it, until there is nothing left.
# Every phase is a program that reads and writes files, so this may be killed at any moment and
# started again. Under nohup:   nohup scripts/grpo_loop.sh RUN > loop.log 2>&1 &
# Ctrl-C once finishes the step, twice stops now. Exit codes are those of `grpo`.
set -euo pipefail
RUN=${1:?usage: grpo_loop.sh RUN}
export GRPO_LOOP=$$ # all phases of one loop: their seconds may be added up
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"

asked=no # a trapped signal is handled when the phase that runs has ended
trap 'asked=yes' INT
# nohup leaves SIGHUP ignored, and a signal ignored at the start cannot be trapped: as it should be.
trap 'asked=yes' HUP
trap 'grpo stop "$RUN" || true' EXIT

while :; do
    phase=$(grpo next "$RUN") || exit $?
    [ "$phase" = done ] && break
    [ "$asked" = yes ] && [ "$phase" != train ] && exit 130
    grpo "$phase" "$RUN" || exit $?
done
grpo table "$RUN"
