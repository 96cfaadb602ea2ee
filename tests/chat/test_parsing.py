"""The parser's policies, by hand; `tests/cases` runs the shared ones."""

import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawjax.chat import parsing
from clawjax.chat.parsing import parse_output


def tool(name, required=(), **properties):
  schema = {
    'type': 'object',
    'properties': properties,
    'required': list(required),
  }
  return {'type': 'function', 'function': {'name': name, 'parameters': schema}}


TEXT = {'type': 'string'}
BASH = tool('bash', ['command'], command=TEXT)
WRITE = tool('write_file', ['path', 'content'], path=TEXT, content=TEXT)
TOOLS = [BASH, WRITE]


def parse(text, *, tools=TOOLS, finish='stop', tail='', **options):
  return parse_output(
    text, tools=tools, finish=finish, prompt_tail=tail, **options
  )


def calls(parsed):
  return [(c.name, json.loads(c.arguments)) for c in parsed.calls]


def hermes(body):
  return f'<tool_call>\n{body}\n</tool_call>'


def bash(command):
  return hermes(json.dumps({'name': 'bash', 'arguments': {'command': command}}))


def xml(name, **values):
  out = [f'<tool_call>\n<function={name}>']
  out += [f'<parameter={k}>\n{v}\n</parameter>' for k, v in values.items()]
  return '\n'.join(out) + '\n</function>\n</tool_call>'


# ---- Hermes ----------------------------------------------------------------


@pytest.mark.parametrize(
  'command',
  [
    'mkdir -p out/{a,b',
    'a </tool_call> b',
    '<tool_call>\n{"name": "bash"}',
    'echo "a" \\n',
    'x</think>y',
    '<|im_end|>',
    '</function></parameter>',
    '',
  ],
)
def test_what_a_json_string_holds_is_data(command):
  parsed = parse('Look.\n\n' + bash(command) + '\n')
  assert calls(parsed) == [('bash', {'command': command})]
  assert parsed.content == 'Look.'
  assert not parsed.malformed


def test_raw_control_characters_are_read_and_escaped_again():
  parsed = parse(
    hermes('{"name": "bash", "arguments": {"command": "a\nb\tc\r\n"}}')
  )
  assert calls(parsed) == [('bash', {'command': 'a\nb\tc\r\n'})]
  assert '\n' not in parsed.calls[0].arguments


def test_two_objects_in_a_block_are_two_calls():
  one = '{"name": "bash", "arguments": {"command": "ls"}}'
  two = '{"name": "bash", "arguments": {"command": "pwd"}}'
  parsed = parse(hermes(one + '\n' + two))
  assert [a['command'] for _, a in calls(parsed)] == ['ls', 'pwd']


@pytest.mark.parametrize(
  'body',
  [
    '{"name": "bash", "arguments": {"command": "print("hi")"}}',
    '{"name": "bash", "arguments": {"command": "ls"}',  # One brace missing.
    "{'name': 'bash', 'arguments': {}}",
    '{"name": "bash", "arguments": "ls"}',
    '{"name": "bash", "arguments": ["ls"]}',
    '{"name": "bash", "arguments": {"n": NaN}}',
    '{"name": "bash", "arguments": {"n": 1e999}}',
    '{"name": "bash", "arguments": {"n": ' + '9' * 5000 + '}}',
    '{"arguments": {"command": "ls"}}',
    '{"name": 3}',
    '{"name": "bash", "arguments": ' + '[' * 5000 + ']' * 5000 + '}',
  ],
)
def test_invalid_json_stays_text_and_is_flagged(body):
  text = hermes(body)
  parsed = parse(text)
  assert parsed.calls == ()
  assert parsed.content == text
  assert parsed.malformed and 'INVALID_JSON' in parsed.flags


def test_a_valid_neighbour_of_an_invalid_block_is_delivered():
  bad = hermes('{"name": "bash", "arguments": {"command": "a"b"}}')
  for text in (bad + '\n' + bash('ls'), bash('ls') + '\n' + bad):
    parsed = parse(text)
    assert calls(parsed) == [('bash', {'command': 'ls'})]
    assert parsed.content == bad
    assert parsed.malformed


def test_prose_about_the_syntax_is_no_call():
  for text in (
    'The tag `<tool_call>` opens a call, `</tool_call>` closes it.',
    'Write <function=bash> like this.',
    '<read_file><path>a</path></read_file>',
    '```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```',
    '{"name": "bash", "arguments": {"command": "ls"}}',
  ):
    parsed = parse(text)
    assert (parsed.content, parsed.calls) == (text, ())


def test_an_unknown_name_is_forwarded():
  parsed = parse(hermes('{"name": " Bash2", "arguments": {}}'))
  assert calls(parsed) == [(' Bash2', {})]


@pytest.mark.parametrize(
  'rest', ['', ', "arguments": null', ', "arguments": ""', ', "arguments": {}']
)
def test_no_arguments_are_an_empty_object(rest):
  parsed = parse(hermes('{"name": "bash"' + rest + '}'))
  assert parsed.calls[0].arguments == '{}'


def test_arguments_encoded_twice_are_decoded_once_more():
  inner = json.dumps(json.dumps({'command': 'ls'}))
  parsed = parse(hermes('{"name": "bash", "arguments": ' + inner + '}'))
  assert calls(parsed) == [('bash', {'command': 'ls'})]


def test_parameters_is_another_word_for_arguments():
  parsed = parse(hermes('{"name": "bash", "parameters": {"command": "ls"}}'))
  assert calls(parsed) == [('bash', {'command': 'ls'})]


def test_spaces_around_names_and_keys_are_removed_where_that_fits():
  parsed = parse(
    hermes('{"name": " bash ", "arguments": {"command ": "ls", "x ": 1}}')
  )
  assert calls(parsed) == [('bash', {'command': 'ls', 'x ': 1})]
  assert 'STRIPPED_KEY' in parsed.flags
  both = '{"name": "bash", "arguments": {"command ": "a", "command": "b"}}'
  assert calls(parse(hermes(both))) == [
    ('bash', {'command ': 'a', 'command': 'b'})
  ]


def test_numbers_keep_their_kind_and_the_last_key_wins():
  parsed = parse(
    hermes(
      '{"name": "f", "arguments": {"n": 9007199254740993, "m": 10, '
      '"x": 1e3, "x": 2}}'
    )
  )
  got = calls(parsed)[0][1]
  assert got == {'n': 9007199254740993, 'm': 10, 'x': 2}
  assert isinstance(got['n'], int)


def test_unicode_is_written_plain_and_surrogates_are_mended():
  parsed = parse(
    hermes(
      '{"name": "bash", "arguments": '
      '{"command": "你好 \\ud83e\\udd9e \u2028 \\ud800"}}'
    )
  )
  assert calls(parsed) == [('bash', {'command': '你好 🦞 \u2028 \ufffd'})]
  assert '你好 🦞' in parsed.calls[0].arguments


def test_text_around_calls_is_kept_in_order():
  parsed = parse('Before.\n' + bash('a') + '\nBetween.\n' + bash('b') + '\nEnd')
  shown = [p if isinstance(p, str) else p.name for p in parsed.pieces]
  assert shown == ['Before.', 'bash', 'Between.', 'bash', 'End']
  assert parsed.content == 'Before.\n\nBetween.\n\nEnd'
  assert 'TEXT_AFTER_CALL' in parsed.flags


def test_white_space_between_calls_is_no_text():
  parsed = parse(bash('a') + '\n\n  \n' + bash('b'))
  assert all(not isinstance(p, str) for p in parsed.pieces)


def test_without_tools_nothing_is_a_call():
  text = bash('ls')
  for tools in ((), None, []):
    assert parse(text, tools=tools).content == text


def test_a_missing_closing_tag_at_the_end_is_forgiven():
  text = bash('ls').removesuffix('\n</tool_call>')
  assert calls(parse(text)) == [('bash', {'command': 'ls'})]
  assert calls(parse(text + '\n' + bash('pwd'))) == [
    ('bash', {'command': 'ls'}),
    ('bash', {'command': 'pwd'}),
  ]


# ---- cuts ------------------------------------------------------------------


@pytest.mark.parametrize('finish', ['length', 'context_full'])
def test_a_cut_call_is_dropped_wherever_it_was_cut(finish):
  whole = bash('def f(): </tool_call> "x" \\ \u00e9')
  first = bash('ls')
  closer = len(whole) - len('\n</tool_call>')
  for end in range(len('<tool_call>\n{'), closer):
    parsed = parse('Hi.\n' + first + '\n' + whole[:end], finish=finish)
    assert calls(parsed) == [('bash', {'command': 'ls'})], whole[:end]
    assert parsed.content == 'Hi.'
    assert not parsed.malformed
    assert 'CUT_CALL' in parsed.flags


def test_a_complete_object_before_the_cut_is_delivered():
  text = bash('ls').removesuffix('\n</tool_call>')
  assert calls(parse(text, finish='length')) == [('bash', {'command': 'ls'})]


def test_a_cut_xml_call_is_dropped_wherever_it_was_cut():
  whole = xml('write_file', path='a', content='x </parameter> y')
  done = len(whole) - len('</function>\n</tool_call>')
  for end in range(len('<tool_call>\n<function='), done):
    parsed = parse('Hi.\n' + whole[:end], finish='length')
    assert (parsed.calls, parsed.content) == ((), 'Hi.'), whole[:end]


# ---- Qwen3-Coder -----------------------------------------------------------


def test_one_newline_is_removed_from_each_side_of_a_value():
  value = '    if x:\n        return 1\n'
  parsed = parse(xml('write_file', path='a', content=value))
  assert calls(parsed) == [('write_file', {'path': 'a', 'content': value})]


@pytest.mark.parametrize(
  'value',
  [
    '<p>a</parameter> b</p>',
    'x </function> y',
    'x </tool_call> y',
    '<tool_call>\n<function=bash>',
    '{"a": 1}',
    '123',
    'null?',
    '\r\n',
    '',
  ],
)
def test_strings_are_verbatim(value):
  parsed = parse(xml('write_file', path='a', content=value))
  assert calls(parsed) == [('write_file', {'path': 'a', 'content': value})]


def test_values_are_coerced_by_schema():
  f = tool(
    'f',
    day={'type': 'integer'},
    n={'type': 'integer'},
    items={'type': 'array'},
    flag={'type': 'boolean'},
    d={'type': 'object'},
    any={},
  )
  parsed = parse(
    xml(
      'f',
      day='2026-01-15',
      n='3',
      items='[{"ok": true, "x": null}]',
      flag='True',
      d="{'a': (1, None)}",
      any='[1]',
      extra='5',
    ),
    tools=[f],
  )
  assert calls(parsed) == [
    (
      'f',
      {
        'day': '2026-01-15',
        'n': 3,
        'items': [{'ok': True, 'x': None}],
        'flag': True,
        'd': {'a': [1, None]},
        'any': [1],
        'extra': '5',
      },
    )
  ]


def test_null_only_where_the_schema_allows_it():
  f = tool(
    'f',
    a={'anyOf': [{'type': 'string'}, {'type': 'null'}]},
    b={'type': 'string', 'enum': ['none', 'null']},
    c={'type': ['integer', 'null']},
    d={'anyOf': [{'type': 'string'}, {'type': 'null'}]},
    e={'$ref': '#/$defs/e'},
  )
  f['function']['parameters']['$defs'] = {'e': {'type': ['number', 'null']}}
  parsed = parse(
    xml('f', a='null', b='null', c='None', d='None', e='null'), tools=[f]
  )
  assert calls(parsed) == [
    ('f', {'a': None, 'b': 'null', 'c': None, 'd': 'None', 'e': None})
  ]


def test_a_malformed_parameter_is_dropped_and_flagged():
  parsed = parse(
    '<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n'
    '<parameter=\necho hi\n</parameter>\n</function>\n</tool_call>'
  )
  assert calls(parsed) == [('bash', {'command': 'ls'})]
  assert parsed.malformed


def test_a_bare_function_counts_for_offered_tools_only():
  block = xml('bash', command='ls').removeprefix('<tool_call>\n')
  parsed = parse("I'll look.\n\n" + block)
  assert calls(parsed) == [('bash', {'command': 'ls'})]
  assert parsed.content == "I'll look."
  other = block.replace('=bash', '=unknown')
  assert parse(other).content == other
  # Inside its wrapper an unknown name is unambiguous.
  assert calls(parse('<tool_call>\n' + other)) == [
    ('unknown', {'command': 'ls'})
  ]


def test_python_literals_are_read_without_warnings_or_evaluation():
  f = tool('f', d={'type': 'object'})
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    for value in (
      "{'a': '\\d'}",
      '__import__("os").getcwd()',
      '{1, 2}',
      "b'x'",
    ):
      got = calls(parse(xml('f', d=value), tools=[f]))[0][1]['d']
      assert got in (value, {'a': '\\d'})


# ---- thinking --------------------------------------------------------------

OPEN = '<|im_start|>assistant\n<think>\n'
SHUT = '<|im_start|>assistant\n<think>\n\n</think>\n\n'


@pytest.mark.parametrize(
  'text, tail, finish, reasoning, content',
  [
    ('Let me.\n</think>\n\nHello!', OPEN, 'stop', 'Let me.', 'Hello!'),
    ('<think>\nr\n</think>\n\nok', '', 'stop', 'r', 'ok'),
    ('\n<think>r</think>ok', '', 'stop', 'r', 'ok'),
    ('The user wants', OPEN, 'length', 'The user wants', ''),
    ('42', OPEN, 'stop', '42', ''),
    ('{"answer": 42}', SHUT, 'stop', '', '{"answer": 42}'),
    ('a </think> b', '', 'stop', '', 'a </think> b'),
    ('say <think> aloud', '', 'stop', '', 'say <think> aloud'),
    (
      '<think>\na\n</think>\n\nmid\n<think>\nb\n</think>\n\nend',
      '',
      'stop',
      'a',
      'mid\n<think>\nb\n</think>\n\nend',
    ),
    ('\ufeffhi', '', 'stop', '', 'hi'),
    ('<think>\n\n</think>\n\n  x', '', 'stop', '', '  x'),
  ],
)
def test_thinking_is_split_from_the_answer(
  text, tail, finish, reasoning, content
):
  parsed = parse(text, tail=tail, finish=finish)
  assert parsed.reasoning == reasoning
  assert parsed.content.strip('\n') == content
  assert parsed.calls == ()


def test_a_draft_in_thinking_is_no_call():
  parsed = parse(
    '<think>\nMaybe ' + bash('rm x') + ' no.\n</think>\n\n' + bash('ls')
  )
  assert calls(parsed) == [('bash', {'command': 'ls'})]
  assert 'rm x' in parsed.reasoning
  only_text = parse('<think>\n' + bash('rm x') + '\n</think>\n\nNo.')
  assert (only_text.calls, only_text.content) == ((), 'No.')


@pytest.mark.parametrize('end', ['', '\n</think>', '\n</think>\n\n'])
def test_a_final_call_in_thinking_is_promoted(end):
  parsed = parse('<think>\nRead it.\n' + bash('cat a') + end)
  assert calls(parsed) == [('bash', {'command': 'cat a'})]
  assert (parsed.reasoning, parsed.content) == ('Read it.', '')
  assert 'PROMOTED' in parsed.flags


def test_a_draft_that_thinking_goes_on_after_is_not_promoted():
  parsed = parse('<think>\n' + bash('rm x') + '\nNo, wait.')
  assert parsed.calls == ()


def test_thinking_that_was_cut_promotes_nothing():
  parsed = parse('<think>\n' + bash('ls'), finish='length')
  assert (parsed.calls, parsed.content) == ((), '')


def test_a_closing_think_tag_in_a_drafted_call_is_data():
  text = '<think>\n' + bash('echo </think>') + '\nso\n</think>\n\n' + bash('ls')
  parsed = parse(text)
  assert calls(parsed) == [('bash', {'command': 'ls'})]
  assert parsed.reasoning.endswith('so')


@pytest.mark.parametrize(
  'tail, is_open',
  [
    ('', False),
    (OPEN, True),
    (SHUT, False),
    ('user\n<think><|im_end|>\n<|im_start|>assistant\n', False),
    (OPEN + 'so far', True),
  ],
)
def test_the_prompt_tells_whether_thinking_is_open(tail, is_open):
  assert parsing.thinking_is_open(tail) is is_open


# ---- ends ------------------------------------------------------------------


def test_nothing_after_the_end_of_the_turn_is_shown():
  text = bash('ls') + '<|im_end|>\n<|im_start|>user\n<tool_response>\nfake'
  parsed = parse(text)
  assert calls(parsed) == [('bash', {'command': 'ls'})]
  assert parsed.content == ''
  assert parse('hi<|endoftext|>more').content == 'hi'
  assert parse('say <|im_end|> aloud', control=False).content == (
    'say <|im_end|> aloud'
  )


def test_stop_strings_count_in_visible_text_only():
  text = '<think>\nmaybe </block>\n</think>\n\n<block>yes</block> and more'
  parsed = parse(text, stop=['</block>'])
  assert parsed.content == '<block>yes'
  assert parsed.stop_text == '</block>'
  assert 'maybe </block>' in parsed.reasoning
  inside = parse(bash('echo STOP') + '\nend STOP x', stop=['STOP'])
  assert calls(inside) == [('bash', {'command': 'echo STOP'})]
  assert (inside.content.strip(), inside.stop_text) == ('end', 'STOP')
  assert parse('plain', stop=['zzz']).stop_text == ''
  assert parse('a STOP b', tools=(), stop=['STOP']).content == 'a '


# ---- any text --------------------------------------------------------------

FRAGMENT = st.sampled_from(
  [
    '<tool_call>',
    '</tool_call>',
    '<function=bash>',
    '<function=',
    '</function>',
    '<parameter=command>',
    '<parameter=',
    '</parameter>',
    '<think>',
    '</think>',
    '{"name": "bash", "arguments": {"command": "ls"}}',
    '{"name": "bash", ',
    '"arguments": ',
    '{"command": "',
    '"}}',
    '\\u12',
    '\\',
    '\n',
    '<|im_end|>',
    '\ud800',
    'x',
    '[',
    '}',
    'é🦞',
  ]
)


@settings(deadline=None, max_examples=150)
@given(
  text=st.lists(FRAGMENT, max_size=14).map(''.join),
  finish=st.sampled_from(['stop', 'length', 'context_full']),
  tail=st.sampled_from(['', OPEN, SHUT]),
  tools=st.sampled_from([TOOLS, []]),
)
def test_any_text_is_parsed_and_what_is_said_is_valid(
  text, finish, tail, tools
):
  parsed = parse(text, finish=finish, tail=tail, tools=tools)
  for call in parsed.calls:
    assert isinstance(json.loads(call.arguments), dict)
    call.arguments.encode()
  (parsed.content + parsed.reasoning).encode()
  assert all(p.strip() for p in parsed.pieces if isinstance(p, str))
  if not tools:
    assert not parsed.calls


def test_long_repetitive_texts_take_linear_time():
  import time

  for unit in (
    '<tool_call>\n<function=f>\n<parameter=a>\n',
    '<tool_call>\n{"name": "f", "arguments": {"a": "',
    '<tool_call>',
    '<think><tool_call>{"a":',
  ):
    begun = time.process_time()
    for tail in ('', OPEN):
      parse(unit * 1000, tail=tail)
    assert time.process_time() - begun < 5
