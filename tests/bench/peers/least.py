"""How our engine and its peers are timed, the same for all."""

import time


def measure(work, repeats):
  """Least wall and CPU seconds of `work()` after one warm-up."""
  work()
  wall, cpu = [], []
  for _ in range(repeats):
    a, b = time.perf_counter(), time.process_time()
    work()
    wall.append(time.perf_counter() - a)
    cpu.append(time.process_time() - b)
  return min(wall), min(cpu)
