#!/usr/bin/env bash
# What no Python package brings: the sandbox's programs, git, and a Python that can make .venv; for
# vLLM on a CPU libnuma, which servers and small images lack; for the CUDA build what Triton compiles a
# GPU's kernels with; and tcmalloc, which makes a CPU faster and is not needed: it comes along where
# nobody has to be asked for it, and a failure to get it stops nothing.
#   ensure   install what is missing, before anything is downloaded: as root, or with sudo where it
#            asks for no password or can ask for it here; else say what to ask an administrator for
#   install  the same, and say so when nothing is missing
#   check    name what is missing
# Exit 4: something is missing and could not be installed, or this kernel forbids the sandbox.
set -euo pipefail
cd "$(dirname "$0")/../.."

# program:package, as Debian and Ubuntu name them
PROGRAMS=(bwrap:bubblewrap nsenter:util-linux prlimit:util-linux choom:util-linux taskset:util-linux
          setpriv:util-linux mount:mount tar:tar git:git)

# Of vLLM: what setup.sh has installed, or is to install.
BUILD=${GRPO_BUILD:-$(cat "${VENV:-.venv}/.ready" 2> /dev/null || true)}

missing_for_cuda() {
    local python=${VENV:-.venv}/bin/python found
    command -v "${CC:-gcc}" gcc clang > /dev/null || echo gcc:gcc
    [ -x "$python" ] || python=$(scripts/setup/python.sh) || { echo Python.h:python3-dev; return; }
    found=$("$python" -c 'import sys, sysconfig as s
print(s.get_path("include"), "python%d.%d-dev" % sys.version_info[:2])') || return 0
    [ -f "${found% *}/Python.h" ] || echo "Python.h:${found##* }"
}

# Whether the dynamic loader finds a library, or cannot be asked.
has_library() {
    local found
    found=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2> /dev/null) || return 0
    [[ $found == *"$1"* ]]
}

missing_packages() {
    for p in "${PROGRAMS[@]}"; do command -v "${p%%:*}" > /dev/null || echo "$p"; done
    [ "$BUILD" = cuda ] || has_library libnuma.so.1 || echo libnuma.so.1:libnuma1
    [ -x "${VENV:-.venv}/bin/python" ] || scripts/setup/python.sh > /dev/null ||
        printf '%s\n' python3:python3 venv:python3-venv
    [ "$BUILD" != cuda ] || missing_for_cuda
}
words() { sed "s/$1//" <<< "$missing" | sort -u | paste -sd ' '; }

WITHOUT="Without it run: \`make setup\`, what only reads a run (.venv/bin/grpo table, compare, show, watch),
and \`make run ARGS='--sandbox none'\`, where the model's commands run as you, unprotected."

refuse() { # what to do
    printf 'missing: %s\n%s\n' "$(words ':.*')" "$1" >&2
    case $missing in *venv:* | tcmalloc:* | *libnuma* | *gcc:* | *Python.h:*) ;; *) echo "$WITHOUT" >&2 ;; esac
    exit 4
}

# Apt would install the python3 that is there already.
refuse_python() {
    local python=${PYTHON:-python3}
    case $missing in *venv:*) ;; *) return 0 ;; esac
    command -v $python > /dev/null && ! scripts/setup/python.sh sys > /dev/null 2>&1 || return 0
    refuse "$($python --version 2>&1) is here, and 3.11, 3.12 or 3.13 is needed, with venv. Install one
beside it (Ubuntu 22.04: apt-get install python3.11 python3.11-venv) and type the same command again."
}

install() {
    local packages sudo=()
    packages=$(words '.*:')
    command -v apt-get > /dev/null ||
        refuse "This is neither Debian nor Ubuntu. Install what your system calls: $packages"
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [ -t 0 ]; }; then
            sudo=(sudo)
        elif command -v sudo > /dev/null; then
            refuse "Type \`make system\` in a terminal: sudo asks for your password there."
        else
            refuse "Ask an administrator of this machine to type: apt-get install $packages"
        fi
    fi
    echo "installing system packages: $packages"
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get) # sudo hands no export on
    local patience=(-o Acquire::http::Timeout=20 -o Acquire::Retries=1) # apt waits minutes else
    # shellcheck disable=SC2086  # a list of words
    "${apt[@]}" update -qq "${patience[@]}" &&
        "${apt[@]}" install -y -qq --no-install-recommends $packages "${patience[@]}" > /dev/null ||
        refuse "apt-get could not install it; see above. Once it can: apt-get install $packages"
}

# It comes with packages that are installed anyway, and with a first set-up where nobody is asked.
# A later `ensure` leaves it: a machine that cannot get it would try at every start.
wants_tcmalloc() {
    [ "$mode" != check ] && [ "$BUILD" != cuda ] || return 1
    [ "$mode" != install ] && [ -z "$installed" ] || return 0
    [ ! -f "${VENV:-.venv}/.ready" ] && command -v apt-get > /dev/null || return 1
    [ "$(id -u)" = 0 ] || { command -v sudo > /dev/null && sudo -n true 2> /dev/null; }
}

# rollout/engine/preload.py finds it and runs without it.
install_tcmalloc() {
    ! has_library libtcmalloc || return 0
    (missing=tcmalloc:libtcmalloc-minimal4; install) ||
        echo "tcmalloc is optional: engine and trainer run without it, somewhat slower." >&2
}

# A box as simple as can be. Why it may fail is said in full by `grpo doctor`.
try_box() {
    local said
    said=$(bwrap --ro-bind / / --unshare-all --unshare-user --disable-userns \
        --assert-userns-disabled --proc /proc --dev /dev true 2>&1) && return
    local switch=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    echo "the sandbox cannot start here: $said" >&2
    if [[ $said == *"Unknown option"* ]]; then
        echo "It needs bubblewrap 0.8 or newer, as in Debian 12 and Ubuntu 24.04." >&2
    elif [ "$(cat $switch 2> /dev/null)" = 1 ]; then
        echo "AppArmor forbids user namespaces. Ask an administrator to type:" \
             "echo kernel.apparmor_restrict_unprivileged_userns=0" \
             "| sudo tee -a /etc/sysctl.d/60-grpo-loop.conf; sudo sysctl --system" >&2
    else
        echo "In a container, start it with --security-opt seccomp=unconfined" \
             "--security-opt apparmor=unconfined --security-opt systempaths=unconfined;" \
             "else see docs/running.md, \"The sandbox\"." >&2
    fi
    echo "$WITHOUT" >&2
    exit 4
}

mode=${1:-check}
case $mode in check | install | ensure) ;; *) echo "usage: system.sh check|install|ensure" >&2; exit 2 ;; esac
installed=
missing=$(missing_packages)
refuse_python
if [ -n "$missing" ]; then
    [ "$mode" != check ] || refuse "\`make system\` installs $(words '.*:')"
    install
    installed=yes
    missing=$(missing_packages)
    [ -z "$missing" ] || refuse "The packages are installed, and these are not found: is their folder on the PATH?"
elif [ "$mode" = install ]; then
    echo "every system package is there"
fi
! wants_tcmalloc || install_tcmalloc
try_box
