"""Task sets made for OpenClaw start without the files that it seeds."""

import json

from clawjax.harness import base, openclaw

PATH = '.openclaw/openclaw.json'


def test_only_a_plan_of_openclaw_changes():
  config = {'agents': {'defaults': {'workspace': '/workspace'}}, 'other': 1}
  plan = base.Plan(
    {PATH: json.dumps(config).encode(), 'x': b'y'}, (('openclaw',),), {}
  )
  changed = openclaw.without_bootstrap(plan)
  assert json.loads(changed.files[PATH]) == {
    'agents': {'defaults': {'workspace': '/workspace', 'skipBootstrap': True}},
    'other': 1,
  }
  assert changed.files['x'] == b'y' and changed.argv == plan.argv
  other = base.Plan({'.pi/agent/models.json': b'{}'}, (('pi',),), {})
  assert openclaw.without_bootstrap(other) is other
