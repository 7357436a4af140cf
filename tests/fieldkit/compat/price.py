"""What a swap and a delta cost with a 40-million-parameter adapter, on ours and on the original:
`python -m tests.fieldkit.compat.price WHEEL`. Counts seconds of CPU, so that other programs on the
machine change little.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import statistics, time, torch
from fieldkit.training import LoraReferenceSnapshot, WeightDeltaTracker

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(4096, 16, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(16, 4096, bias=False)})

def median(work, repeats=7):
    times = []
    for _ in range(repeats):
        began = time.process_time(); work(); times.append(time.process_time() - began)
    return 1000 * statistics.median(times)

torch.set_num_threads(1)
model = torch.nn.Sequential(*(Layer() for _ in range(305)))
n = sum(p.numel() for p in model.parameters())
reference, tracker = LoraReferenceSnapshot(model), WeightDeltaTracker(model)
copies = [p.detach().clone() for p in model.parameters()]

def swap():
    with reference: pass

def copy():  # what a swap cannot do without: own values out, the reference's in, own values in
    for p, c in zip(model.parameters(), copies):
        own = p.detach().clone(); p.data.copy_(c); p.data.copy_(own)

def loop():
    total, largest = 0.0, 0.0
    for p, c in zip(model.parameters(), copies):
        d = p.detach() - c
        total += float((d * d).sum()); largest = max(largest, float(d.abs().max()))

print(f"{n / 1e6:.1f} M: swap {median(swap):.0f} ms, three copies {median(copy):.0f} ms, "
      f"delta {median(tracker.delta, 3):.0f} ms, plain float32 loop {median(loop, 3):.0f} ms")
"""


def main(wheel: str) -> None:
    """Print one line of milliseconds for each of the two."""
    from tests.fieldkit.compat.__main__ import ORIGINAL
    from tests.fieldkit.compat.scratch import environment

    with tempfile.TemporaryDirectory() as folder:
        for package in (wheel, ORIGINAL):
            python = environment(Path(folder) / Path(package).name, package)
            print(Path(package).name, flush=True)
            subprocess.run([python, "-P", "-c", MEASURE], cwd=folder, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
