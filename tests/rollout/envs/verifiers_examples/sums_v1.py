# /// script
# dependencies = ["verifiers==0.4.0"]
# ///
"""Sums, as a taskset of verifiers 0.4 (v1)."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply or "") < 20)


class SumConfig(vf.TasksetConfig):
    n: int = 8


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(
                SumData(idx=i, prompt=f"What is {i} + {i}?", answer=str(2 * i)), self.config.task
            )
            for i in range(self.config.n)
        ]


__all__ = ["SumTaskset"]
