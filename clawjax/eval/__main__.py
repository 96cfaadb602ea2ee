"""Scores models through harnesses on task sets.

  python -m clawjax.eval --tasks PATH --format NAME --harness NAME
    --model PATH --limit N --out DIR

  --tasks, --format   once per task set (`python -m clawjax.tasks` lists what
                      loads); format `synth` generates tasks, PATH is the split
  --harness           once per harness, or several with commas
  --model             once per model: a Hugging Face folder, builtin:tiny,
                      scripted:FILE, openai:URL or anthropic:URL
  --judge             once per model that grades rubrics, behind any
                      OpenAI-compatible API (the paper's is gpt-5.4)

Prints a line per cell, writes DIR/report.html, DIR/results.json, the rollouts
and their transcripts. The same command goes on where it was cut short.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from clawjax import errors
from clawjax import harness as harness_lib
from clawjax import sandbox as sandbox_lib
from clawjax.eval import bench, board, endpoint, page, scores
from clawjax.eval import run as run_lib
from clawjax.tasks import __main__ as tasks_command
from clawjax.tasks import formats, judge, scoring

SYNTH = 'synth'


def parser() -> argparse.ArgumentParser:
  """All flags of the command."""
  p = argparse.ArgumentParser(
    prog='python -m clawjax.eval',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  p.add_argument('--tasks', action='append', required=True, metavar='PATH')
  p.add_argument(
    '--format',
    action='append',
    required=True,
    choices=[*formats.FORMATS, SYNTH],
    help='of each --tasks, in order; one for all',
  )
  p.add_argument('--harness', action='append', required=True)
  p.add_argument('--model', action='append', required=True)
  p.add_argument('--out', required=True, type=pathlib.Path)
  p.add_argument(
    '--limit', type=int, default=0, help='tasks of each set; 0: all'
  )
  p.add_argument('--samples', type=int, default=1, help='rollouts per task')
  p.add_argument('--temperature', type=float, help='0: greedy; default 1')
  p.add_argument('--top-p', type=float)
  p.add_argument('--max-tokens', type=int, help='of one answer')
  p.add_argument('--token-budget', type=int, help='sampled in one rollout')
  p.add_argument('--time-limit', type=float, help="seconds; default the task's")
  p.add_argument('--concurrency', type=int, default=0)
  p.add_argument('--seed', type=int, default=0)
  p.add_argument('--threshold', type=float, default=scores.SUCCESS)
  p.add_argument(
    '--weights', default='', help='JSON {domain: weight} of the benchmark'
  )
  p.add_argument(
    '--harness-options',
    default='{}',
    help='JSON {name: {option: value}}, or {option: value} for one harness',
  )
  p.add_argument('--sandbox', default='bwrap', choices=sandbox_lib.NAMES)
  p.add_argument('--tokenizer', default='', help="default the model's own")
  p.add_argument('--thinking', default='auto')
  p.add_argument('--family', default='qwen3', help='template family')
  p.add_argument('--window', type=int, default=32768, help='tokens')
  p.add_argument('--slots', type=int, default=8)
  p.add_argument('--upstream-model', default='', help='of a hosted API')
  p.add_argument('--api-key-env', default='', help='of a hosted API')
  j = p.add_argument_group('judges and graders')
  j.add_argument('--judge', action='append', default=[], metavar='MODEL')
  j.add_argument('--judge-url', default='', help="API; default the SDK's own")
  j.add_argument('--judge-key-env', default='OPENAI_API_KEY')
  j.add_argument('--judge-concurrency', type=int, default=8)
  j.add_argument('--judge-cache', default='', help='folder of answers')
  j.add_argument(
    '--judge-price', default='', help='US dollars per million tokens: IN,OUT'
  )
  j.add_argument('--code-only', action='store_true', help='leave rubrics out')
  j.add_argument(
    '--renormalise-missing',
    action='store_true',
    help='a side without a number leaves the other alone',
  )
  j.add_argument(
    '--no-aliases',
    action='store_true',
    help="graders see the harness's own tool names",
  )
  j.add_argument(
    '--process',
    default='off',
    choices=['off', 'last', 'best', 'checks'],
    help='score the workspace before each call too',
  )
  j.add_argument(
    '--canaries', action='store_true', help='plant files that tell on readers'
  )
  p.add_argument('--export', default='', help='atif, chat, or both by comma')
  p.add_argument(
    '--baseline', type=pathlib.Path, help='DIR of another evaluation'
  )
  p.add_argument('--title', default='Evaluation')
  p.add_argument('--json', action='store_true', help='print results.json')
  loader = p.add_argument_group('task loaders')
  tasks_command.add_options(loader)  # type: ignore[arg-type]
  return p


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  args = parser().parse_args(argv)
  try:
    config = board.BoardConfig(
      threshold=args.threshold,
      weights=_json(args.weights or '{}', '--weights'),
    )
    baseline = load_cells(args.baseline) if args.baseline else []
    cells = asyncio.run(_run(args))
  except errors.ClawjaxError as error:
    print(f'clawjax.eval: {error}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print(
      'clawjax.eval: stopped; the same command goes on from here',
      file=sys.stderr,
    )
    return 130
  found = board.results(cells, config)
  bench.write_json(args.out / 'results.json', found)
  text = board.render(cells, config, title=args.title, baseline=baseline)
  bench.write_text(args.out / 'report.html', text)
  if args.json:
    print(json.dumps(found))
  else:
    for cell in cells:
      print(_line(cell, config))
    print(f'report: {args.out / "report.html"}')
  return 0 if all(t.scored for c in cells for t in c.trials) else 1


async def _run(args: argparse.Namespace) -> list[bench.Cell]:
  sets = load_sets(args)
  harnesses = load_harnesses(args)
  args.out.mkdir(parents=True, exist_ok=True)
  sampling = {
    'temperature': args.temperature,
    'top_p': args.top_p,
    'max_tokens': args.max_tokens,
  }
  export = tuple(e for e in args.export.split(',') if e)
  if not set(export) <= {'atif', 'chat'}:
    raise errors.ConfigError(f'--export: wanted atif, chat, got {args.export}')
  config = bench.BenchConfig(
    samples=args.samples,
    sampling={k: v for k, v in sampling.items() if v is not None},
    seed=args.seed,
    concurrency=args.concurrency,
    time_limit_s=args.time_limit,
    token_budget=args.token_budget,
    export=export,
    endpoint=endpoint.EndpointConfig(
      tokenizer=args.tokenizer,
      thinking=args.thinking,
      family=args.family,
      slots=args.slots,
      window=args.window,
      upstream_model=args.upstream_model,
      api_key_env=args.api_key_env,
    ),
    scoring=scoring_of(args),
  )
  return await bench.run(
    args.out,
    models=args.model,
    harnesses=harnesses,
    sets=sets,
    backend=sandbox_lib.load(args.sandbox),
    config=config,
    say=lambda text: print(text, file=sys.stderr, flush=True),
  )


def scoring_of(args: argparse.Namespace) -> scoring.Scoring:
  """Judges and options of the score.

  Raises:
    ConfigError: a flag is not right.
  """
  prices: list[float] | list[None] = [None, None]
  if args.judge_price:
    try:
      prices = [float(x) for x in args.judge_price.split(',')]
      assert len(prices) == 2
    except (ValueError, AssertionError):
      raise errors.ConfigError(
        f'--judge-price: wanted IN,OUT, got {args.judge_price!r}'
      ) from None
  if args.judge_concurrency < 1:
    raise errors.ConfigError('wanted --judge-concurrency >= 1')
  try:
    return scoring.Scoring(
      judges=tuple(
        judge.JudgeConfig(
          model=model,
          base_url=args.judge_url,
          api_key_env=args.judge_key_env,
          concurrency=args.judge_concurrency,
          cache_dir=args.judge_cache,
          price_in=prices[0],
          price_out=prices[1],
        )
        for model in args.judge
      ),
      code_only=args.code_only,
      renormalise_missing=args.renormalise_missing,
      aliases=not args.no_aliases,
      process=args.process,
      canaries=args.canaries,
    )
  except ValueError as error:
    raise errors.ConfigError(f'--judge: {error}') from error


def load_sets(args: argparse.Namespace) -> list[bench.TaskSet]:
  """The task sets that the flags name.

  Raises:
    ConfigError, TaskError: a flag or a set is not right.
  """
  kinds = args.format
  if len(kinds) == 1:
    kinds = kinds * len(args.tasks)
  if len(kinds) != len(args.tasks):
    raise errors.ConfigError(
      f'wanted one --format, or one per --tasks ({len(args.tasks)}), '
      f'got {len(kinds)}'
    )
  if args.limit < 0 or args.samples < 1:
    raise errors.ConfigError('wanted --limit >= 0 and --samples >= 1')
  return [_load_set(p, k, args) for p, k in zip(args.tasks, kinds, strict=True)]


def _load_set(path: str, kind: str, args: argparse.Namespace) -> bench.TaskSet:
  if kind == SYNTH:
    from clawjax.tasks import synth

    tasks = synth.tasks(path, count=args.limit or 64)  # type: ignore[arg-type]
    facts = {'path': path, 'format': kind, 'run': len(tasks)}
    return bench.TaskSet(f'synth-{path}', tasks, facts)
  report = formats.load(path, kind, tasks_command.options_of(args))
  print(f'{path}: {report.counts()}', file=sys.stderr)
  chosen = report.tasks[: args.limit] if args.limit else report.tasks
  return bench.TaskSet(
    pathlib.Path(path).resolve().name,
    chosen,
    {**_facts(path, kind, report), 'run': len(chosen)},
  )


def _facts(path: str, kind: str, report: Any) -> dict[str, Any]:
  known = tasks_command.as_json(report)
  kept = ('loaded', 'unsupported', 'broken', 'reasons', 'commit', 'digest')
  return {
    'path': path,
    'format': kind,
    **{k: known[k] for k in kept},
    'options': known['options'],
  }


def load_harnesses(args: argparse.Namespace) -> list[Any]:
  """The harnesses that the flags name, with their options."""
  names = [n for given in args.harness for n in given.split(',') if n]
  options = _json(args.harness_options, '--harness-options')
  if options and not options.keys() <= set(names):
    if len(names) > 1:
      raise errors.ConfigError(
        f'--harness-options: wanted keys of {names}, got {sorted(options)}'
      )
    options = {names[0]: options}
  return [harness_lib.load(n, **_tuples(options.get(n, {}))) for n in names]


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
  return {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}


def _json(text: str, flag: str) -> dict[str, Any]:
  """A JSON object given as text or as the path of a file."""
  try:
    if not text.lstrip().startswith('{'):
      text = pathlib.Path(text).read_text()
    value = json.loads(text)
  except (OSError, ValueError) as error:
    raise errors.ConfigError(
      f'{flag}: wanted a JSON object: {error}'
    ) from error
  if not isinstance(value, dict):
    raise errors.ConfigError(f'{flag}: wanted a JSON object, got {text[:80]}')
  return value


def load_cells(out: pathlib.Path) -> list[bench.Cell]:
  """The cells of an evaluation that was written to `out`.

  Raises:
    ConfigError: there is none.
  """
  try:
    known = json.loads((out / 'results.json').read_text())['cells']
    cells = [
      bench.Cell(
        c['model'], c['harness'], c['tasks'], c['harness_version'], c['facts']
      )
      for c in known
    ]
    return [
      dataclasses.replace(
        c,
        trials=tuple(run_lib.load_trials(out / 'eval' / f'{c.slug}.json')),
      )
      for c in cells
    ]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.ConfigError(
      f'{out}: wanted the folder of a finished evaluation: {error}'
    ) from error


def _line(cell: bench.Cell, config: board.BoardConfig) -> str:
  s = scores.summarise(cell.trials, threshold=config.threshold, ks=())
  return (
    f'{cell.label}: Pass@1 {page.short(s.pass1.value)} '
    f'[{page.short(s.pass1.low)}, {page.short(s.pass1.high)}], '
    f'solved {page.short(s.success.value)}, {s.scored} scored, '
    f'{s.trials - s.scored} errors'
  )


if __name__ == '__main__':
  sys.exit(main())
