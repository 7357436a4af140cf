#!/usr/bin/env bash
# Make .venv-openenv with the pinned requirements of the servers in docs/openenv. Run by
# `make test-envs`; a no-op where it is there and its requirements have not changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV=.venv-openenv
WANTED=requirements/openenv.txt
UV=scripts/setup/uv.sh

cmp -s $WANTED $VENV/.ready && exit 0
echo "openenv: making $VENV (half a gigabyte)"
rm -rf $VENV
$UV venv -q --python .venv/bin/python $VENV
$UV pip install -q --python $VENV/bin/python --no-deps -r $WANTED
cp $WANTED $VENV/.ready
