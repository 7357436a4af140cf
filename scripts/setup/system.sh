#!/usr/bin/env bash
# The programs that no Python package brings. `check`: one line naming what is missing and what
# installs it, exit 4. `install`: install it (Debian, Ubuntu). `ensure`: install as root without
# asking, else check.
set -euo pipefail

# program:package, as Debian and Ubuntu name them
PROGRAMS=(bwrap:bubblewrap nsenter:util-linux prlimit:util-linux choom:util-linux taskset:util-linux
          setpriv:util-linux mount:mount tar:tar git:git)

missing_programs() { for p in "${PROGRAMS[@]}"; do command -v "${p%%:*}" > /dev/null || echo "$p"; done; }
words() { sed "s/$1//" <<< "$missing" | sort -u | paste -sd ' '; }

install() {
    local packages sudo=()
    packages=$(words '.*:')
    command -v apt-get > /dev/null || {
        echo "missing: $(words ':.*'); this is no Debian or Ubuntu: install the packages that your" \
             "system calls $packages" >&2
        exit 4
    }
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    echo "installing system packages: $packages"
    export DEBIAN_FRONTEND=noninteractive
    "${sudo[@]}" apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends $packages > /dev/null
}

missing=$(missing_programs)
[ -z "$missing" ] && { [ "${1:-check}" = install ] && echo "every system package is there"; exit 0; }
case "${1:-check}" in
    install) install ;;
    ensure) if [ "$(id -u)" = 0 ]; then install; else exec "$0" check; fi ;;
    check)
        echo "missing: $(words ':.*'); \`make system\` installs $(words '.*:')" >&2
        exit 4
        ;;
    *) echo "usage: system.sh check|install|ensure" >&2; exit 2 ;;
esac
