"""Every shared case against the real thing; none is left out in silence."""

import pytest

from tests.cases import checks, levels, reader
from tests.conftest import SHARED

CASES = reader.load(SHARED / 'cases')
ABSENT = pytest.param(
  None, marks=pytest.mark.skip('no shared cases beside this checkout')
)
assert checks  # Each module registers its checks.


@pytest.mark.parametrize(
  'case', CASES or [ABSENT], ids=lambda case: case and case.id
)
async def test_case(case, bench):
  own = reader.CHECKS.get(case.number)
  for_all = {'model_output': levels.model_output, 'request': levels.request}
  level = for_all.get(case.level)
  machine = {'parsed', 'content', 'reasoning'} & case.expected.keys()
  assert own or (case.level == 'model_output' and machine), 'not run'
  if level:
    await level(case, bench)
  if own:
    await own(case, bench)
