"""How our engine and its peers are timed, the same for all."""

import time


def measure(work, answer, repeats):
  """Least (wall, CPU) seconds of `work(1)` and of `work(answer)`.

  Each runs once to warm up; then they take turns, so that a slow spell of the
  machine meets both.
  """
  lengths = (1, answer)
  for length in lengths:
    work(length)
  wall, cpu = [{n: [] for n in lengths} for _ in range(2)]
  for _ in range(repeats):
    for length in lengths:
      a, b = time.perf_counter(), time.process_time()
      work(length)
      wall[length].append(time.perf_counter() - a)
      cpu[length].append(time.process_time() - b)
  return [(min(wall[n]), min(cpu[n])) for n in lengths]
