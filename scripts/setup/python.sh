#!/usr/bin/env bash
# Print the name of a Python that is new enough and has these modules, by default those that make
# environments; exit 1 if there is none.
modules=${1:-ensurepip, venv}
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    command -v "$candidate" > /dev/null || continue
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || continue
    "$candidate" -c "import $modules" 2> /dev/null || continue
    echo "$candidate"
    exit
done
exit 1
