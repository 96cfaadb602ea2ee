"""HTML pieces shared by the report pages: shell, style, tables, escapes.

A page is one file that asks the network for nothing: style, script and pictures
are inline. It follows the reader's light or dark setting and folds to one
column on a phone. All text that came from a model, a task or a harness passes
through `escape`, which also makes control characters visible, so that a
transcript can neither break the page nor hide anything in it.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence


def escape(text: object) -> str:
  """HTML-safe text in which no character is invisible.

  New lines and tabs stay; other control characters become their escape
  (`\\x1b`); format characters (bidirectional overrides, zero-width and the
  like) and lone surrogates become their code point in brackets.
  """
  out = []
  for char in str(text):
    code = ord(char)
    if char in '\n\t' or 32 <= code < 127:
      out.append(char)
    elif unicodedata.category(char) == 'Cc':
      out.append(f'\\x{code:02x}')
    elif unicodedata.category(char) in ('Cf', 'Cs', 'Co', 'Cn'):
      out.append(f'[U+{code:04X}]')
    else:
      out.append(char)
  return html.escape(''.join(out), quote=True)


# ---- numbers ---------------------------------------------------------------

DASH = '\u2013'
MINUS = '\u2212'
NONE = '<span class="none">\u2014</span>'


def number(value: float | None, digits: int = 3) -> str:
  """A fixed number of digits; a dash where there is no number."""
  if value is None or not math.isfinite(value):
    return NONE
  return f'{value:.{digits}f}'.replace('-', MINUS)


def signed(value: float | None, digits: int = 3) -> str:
  """The same with its sign."""
  if value is None or not math.isfinite(value):
    return NONE
  return f'{value:+.{digits}f}'.replace('-', MINUS)


def short(value: float, digits: int = 4) -> str:
  """About so many digits, whatever the size: for axes and hover texts."""
  if not math.isfinite(value):
    return '\u2014'
  size = abs(value)
  if size >= 1e6 or 0 < size < 1e-4:
    text = f'{value:.2e}'
  elif value == int(value) or (size >= 1000 and digits <= 4):
    text = f'{value:,.0f}'
  else:
    text = f'{value:.{digits}g}'
  return text.replace('-', MINUS)


def span(low: float, high: float, digits: int = 2) -> str:
  """An interval in small type; empty when there is none."""
  if not (math.isfinite(low) and math.isfinite(high)):
    return ''
  return (
    f'<span class="ci">{number(low, digits)} to {number(high, digits)}</span>'
  )


def is_number(value: object) -> bool:
  """Whether `value` is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def one_line(text: object, limit: int = 160) -> str:
  """The text on one line, cut where it is too long."""
  line = ' '.join(str(text).split())
  return line if len(line) <= limit else line[: limit - 1] + '\u2026'


# ---- blocks ----------------------------------------------------------------


def table(
  head: Sequence[str],
  rows: Iterable[Sequence[str]],
  *,
  text_columns: Sequence[int] = (0,),
  wrap_columns: Sequence[int] = (),
  caption: str = '',
  strong_rows: Sequence[int] = (),
) -> str:
  """A table of ready HTML cells; columns hold numbers unless named as text.

  Lines of `wrap_columns` are broken where they are long.
  """

  def cells(tag: str, row: Sequence[str]) -> str:
    kinds = {
      **dict.fromkeys(text_columns, ''),
      **dict.fromkeys(wrap_columns, ' class=wrap'),
    }
    return ''.join(
      f'<{tag}{kinds.get(i, " class=n")}>{cell}</{tag}>'
      for i, cell in enumerate(row)
    )

  body = ''.join(
    f'<tr{" class=strong" if i in strong_rows else ""}>{cells("td", row)}</tr>'
    for i, row in enumerate(rows)
  )
  title = f'<caption>{caption}</caption>' if caption else ''
  return (
    f'<div class="scroll"><table>{title}<thead><tr>{cells("th", head)}</tr>'
    f'</thead><tbody>{body}</tbody></table></div>'
  )


def section(title: str, body: str, *, lead: str = '', anchor: str = '') -> str:
  """A titled part of the page; nothing when the body is empty."""
  if not body:
    return ''
  mark = f' id="{anchor}"' if anchor else ''
  text = f'<p class="lead">{lead}</p>' if lead else ''
  return f'<section{mark}><h2>{title}</h2>{text}{body}</section>'


def fold(summary: str, body: str, *, opened: bool = False) -> str:
  """A part that opens on a click."""
  return (
    f'<details{" open" if opened else ""}><summary>{summary}</summary>'
    f'{body}</details>'
  )


def shell(title: str, body: str) -> str:
  """The whole page around `body`."""
  return (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    f'<title>{escape(title)}</title><link rel="icon" href="data:,">'
    f'<style>{_STYLE}</style></head><body><main>{body}</main>'
    f'<div id="tip" role="status"></div><script>{_SCRIPT}</script>'
    '</body></html>\n'
  )


_STYLE = """
:root{--page:#f6f5f1;--card:#fdfdfc;--ink:#14140f;--soft:#55544f;--faint:#88867e;
--line:#dfddd4;--grid:#e9e7df;--s1:#2a78d6;--s2:#d9730d;--s3:#138a60;--s4:#7a4fc4;
--good:#0b7a3b;--bad:#b3261e;--model:42,120,214;--pill:#ecebe4;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--page:#131312;--card:#1c1c1a;
--ink:#f3f2ec;--soft:#bdbbb1;--faint:#8b8980;--line:#35342f;--grid:#2a2926;
--s1:#5b9df0;--s2:#f0964a;--s3:#38b888;--s4:#a98be6;--good:#52c27f;--bad:#f2857c;
--model:91,157,240;--pill:#2b2a27;--warn:#e0b25a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 80px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:18px;margin:0 0 4px}h3{font-size:14px;margin:0}
p{margin:0 0 10px;max-width:75ch}.sub,.lead,.cap{color:var(--soft)}
.lead{margin-bottom:14px}.cap{font-size:13px;margin:8px 0 0}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:20px;margin-top:18px}
.headline{font-size:19px;line-height:1.45;margin:0 0 14px;max-width:60ch}
.facts{display:flex;flex-wrap:wrap;gap:6px 18px;margin:10px 0 0;padding:0;
list-style:none;color:var(--soft);font-size:14px}.facts b{color:var(--ink);
font-weight:600}
.scroll{overflow-x:auto;margin:6px 0}
table{border-collapse:collapse;font-size:14px;min-width:50%}
caption{text-align:left;color:var(--soft);font-size:13px;padding:0 0 6px}
th,td{padding:6px 18px 6px 0;text-align:left;vertical-align:baseline;
border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:500;font-size:13px}
td.wrap{white-space:normal;min-width:18em;overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums}
tr.strong td{font-weight:600}tr:last-child td{border-bottom:0}
.ci{color:var(--faint);font-size:12px;font-weight:400;margin-left:6px}
.none{color:var(--faint)}.up{color:var(--good)}.down{color:var(--bad)}
.grid{display:grid;gap:18px 26px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
figure{margin:0;min-width:0}figcaption{display:flex;gap:10px;align-items:baseline;
justify-content:space-between;flex-wrap:wrap}
figcaption .now{color:var(--soft);font-size:13px;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--faint);font:11px system-ui,sans-serif}
.key{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);
margin:2px 0 0}
.bar{display:flex;height:22px;gap:2px;margin:8px 0;border-radius:4px;
overflow:hidden}.bar i{display:block;min-width:1px}
#tip{position:fixed;z-index:9;pointer-events:none;display:none;max-width:340px;
background:var(--ink);color:var(--card);padding:5px 9px;border-radius:6px;
font-size:12px;line-height:1.4;white-space:pre;
font-variant-numeric:tabular-nums}
details>summary{cursor:pointer;color:var(--soft)}
details>summary:hover{color:var(--ink)}
details[open]>summary{margin-bottom:8px}
.notes{border-left:3px solid var(--warn);padding-left:14px;list-style:none;
margin:14px 0 0;color:var(--soft);font-size:14px}
pre,.tree{font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,
"Liberation Mono",monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;font-size:12.5px}
.pill{display:inline-block;background:var(--pill);border-radius:20px;
padding:1px 9px;font-size:12.5px;margin:0 5px 4px 0;white-space:nowrap}
.pill.good{color:var(--good)}.pill.bad{color:var(--bad)}
a.pill{text-decoration:none;color:inherit}
a.pill:hover{text-decoration:underline}
.rollout{border-top:1px solid var(--line);padding:14px 0 0;margin-top:14px}
.rollout>summary{list-style:none;color:var(--ink);display:block}
.rollout>summary::-webkit-details-marker{display:none}
.rollout>summary h3::before{content:'\\25B8';display:inline-block;width:1.1em;
color:var(--faint)}
.rollout[open]>summary h3::before{content:'\\25BE'}
.why{color:var(--soft);font-size:13px;font-weight:400}
.tree{white-space:pre-wrap;overflow-wrap:anywhere;margin-top:8px}
.tree .env{color:var(--soft)}
.tree i{font-style:normal;color:var(--ink);background:rgba(var(--model),.13);
border-radius:2px;cursor:default}
.tree i.q1{background:rgba(var(--model),.24)}
.tree i.q2{background:rgba(var(--model),.40)}
.tree i.q3{background:rgba(var(--model),.60)}
.tree i:hover{outline:1.5px solid rgb(var(--model))}
.tree .off i{background:none;box-shadow:inset 0 -1.5px var(--faint)}
.tree .call{display:block;font:12px system-ui,sans-serif;color:var(--faint);
margin:7px 0 1px}
.branch{border-left:2px solid var(--line);margin:6px 0 6px 4px;
padding:0 0 0 14px}
.tree details.more{display:inline}.tree details.more>summary{display:inline;
font:12px system-ui,sans-serif;color:var(--faint);list-style:none;
border-bottom:1px dotted}
.sw{display:inline-block;padding:0 5px;border-radius:2px;
background:rgba(var(--model),.13)}.sw.q3{background:rgba(var(--model),.60)}
@media(max-width:560px){.ci{display:block;margin:0}th,td{padding-right:12px}
main{padding:18px 10px 60px}section{padding:14px}
.branch{padding-left:8px}h1{font-size:22px}.headline{font-size:17px}}
@media print{section{break-inside:avoid}}
"""

# Hover: charts carry their points in data-c, model tokens theirs in data-t.
_SCRIPT = """
(()=>{const tip=document.getElementById('tip');
const show=(text,e)=>{tip.textContent=text;tip.style.display='block';
const w=tip.offsetWidth,h=tip.offsetHeight;
tip.style.left=Math.max(4,Math.min(e.clientX+14,innerWidth-w-6))+'px';
tip.style.top=(e.clientY-h-12<4?e.clientY+18:e.clientY-h-12)+'px'};
const hide=()=>{tip.style.display='none'};
document.querySelectorAll('svg[data-c]').forEach(svg=>{
const c=JSON.parse(svg.dataset.c),cross=svg.querySelector('.cross');
svg.addEventListener('pointermove',e=>{const p=new DOMPoint(e.clientX,e.clientY)
.matrixTransform(svg.getScreenCTM().inverse());
let k=0;c.x.forEach((x,i)=>{if(Math.abs(x-p.x)<Math.abs(c.x[k]-p.x))k=i});
cross.setAttribute('x1',c.x[k]);cross.setAttribute('x2',c.x[k]);
cross.style.display='';show(c.t[k],e)});
svg.addEventListener('pointerleave',()=>{cross.style.display='none';hide()})});
document.addEventListener('pointerover',e=>{
const t=e.target.closest&&e.target.closest('[data-t]');
if(t)show(t.dataset.t,e);
else if(!(e.target.closest&&e.target.closest('svg[data-c]')))hide()});
addEventListener('scroll',hide,{passive:true})})();
"""
