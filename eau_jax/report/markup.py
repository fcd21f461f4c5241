"""How the page is written and how it looks: tags that escape every text in them, and the style sheet.

What agents, users and tools said is untrusted. Text becomes markup only in `tag`, and `tag` escapes all that is not
already `Html`, so there is no second way in. The page runs no script and loads nothing;
its policy tells the browser so.
"""

import html
import math
from typing import Any, Sequence

from eau_jax.core.printable import printable

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
VOID = {"meta", "br", "img"}


class Html(str):
    """Markup made by `tag`: the only text that is not escaped."""


def tag(name: str, /, *children: str, **attributes: object) -> Html:
    """<name attributes>children</name>. Attribute `class_` is written class, `aria_label` aria-label."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    inner = "".join(child if isinstance(child, Html) else escape(child) for child in children)
    return Html(f"<{name}{written}>" if name in VOID else f"<{name}{written}>{inner}</{name}>")


def escape(value: object) -> str:
    """Text that is only text in a tag or an attribute; control characters become signs, halves of surrogate pairs "?"."""
    return html.escape(printable(str(value).encode("utf-8", "replace").decode("utf-8")), quote=True)


def number(value: object) -> str:
    """A number in three digits or so; a dash for what is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return "–"
    whole = abs(value) < 1e7 and (float(value).is_integer() or abs(value) >= 1000)
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def note(text: str) -> Html:
    """A line of small print; nothing for no text."""
    return tag("p", text, class_="dim") if text else Html("")


def count(number_of: int, what: str) -> str:
    """"3 turns", "1 turn"."""
    return f"{number_of} {what}{'s' * (number_of != 1)}"


def folded(title: str, content: Html, small: str = "", is_open: bool = False) -> Html:
    """Content that a click on its title shows."""
    return tag("details", tag("summary", title, " ", tag("small", small)), content, **({"open": ""} if is_open else {}))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Rows of cells below a head."""
    return tag("div", tag("table", tag("tr", *(tag("th", cell) for cell in head)),
                          *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)), class_="wide")


def as_float(value: Any) -> float:
    """A number, or nan for what is none."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def style() -> Html:
    """The style sheet, as a tag; it holds no text from the run."""
    return Html(f"<style>{STYLE}</style>")


STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b1f24; --dim: #5d6670; --line: #dde1e6;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b8588d; --c4: #96700a; --c5: #3894c9;
  --agent: #e3eefa; --other: #f1ece2; --good: #00714f; --bad: #b34400; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --text: #e7eaee; --dim: #9aa4af;
  --line: #343a42; --c0: #5db4ee; --c1: #f58b4c; --c2: #3ccba0; --c3: #e59ac6; --c4: #e2c044; --c5: #9bd8fb;
  --agent: #1c3348; --other: #37312a; --good: #45cf9f; --bad: #ff9b63; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 1280px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .3rem 0; } small, .dim { color: var(--dim); font-size: .85rem; }
.cards { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.tiles { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(125px, 1fr)); margin-top: .8rem; }
.card, .tile, details, .headline { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card { margin: 0; padding: .6rem .7rem .4rem; } .tile { padding: .5rem .8rem; }
.tile b { display: block; font-size: 1.25rem; }
.headline { padding: .9rem 1.1rem; border-left: 5px solid var(--c0); margin-top: .8rem; }
.headline .big { font-size: 1.9rem; font-weight: 650; line-height: 1.25; } .good { color: var(--good); }
.bad { color: var(--bad); }
figcaption { display: flex; gap: .5rem; align-items: baseline; } .name { font-weight: 600; white-space: nowrap; }
.last { margin-left: auto; white-space: nowrap; }
figure > svg { overflow: visible; display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--dim); }
.mid { text-anchor: middle; } .end { text-anchor: end; }
svg path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--line); stroke-width: 1; }
.mark { stroke: var(--dim); stroke-width: 1.2; stroke-dasharray: 2 3; }
.mark.good { stroke: var(--good); stroke-dasharray: 5 2; } .mark.bad { stroke: var(--bad); stroke-dasharray: 5 2; }
svg text.label { font-size: 9px; } svg text.label.good { fill: var(--good); } svg text.label.bad { fill: var(--bad); }
.raw { stroke-width: 1; opacity: .38; } .line { stroke-width: 2.2; } .dot { stroke-width: 5; }
.bar { stroke-width: 3; opacity: .4; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); }
.c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .82rem; color: var(--dim);
  padding-bottom: .3rem; }
.legend b { color: var(--text); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .35em; }
.key.c0 { background: var(--c0); } .key.c1 { background: var(--c1); } .key.c2 { background: var(--c2); }
.key.c3 { background: var(--c3); } .key.c4 { background: var(--c4); } .key.c5 { background: var(--c5); }
details { margin: .5rem 0; padding: .1rem .8rem; } details[open] { padding-bottom: .8rem; }
summary { cursor: pointer; padding: .45rem 0; font-weight: 550; } summary small { font-weight: 400; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  }
th { color: var(--dim); font-weight: 500; } td, th { overflow-wrap: normal; }
td { font-variant-numeric: tabular-nums; }
.across { display: block; height: .8em; border-radius: 3px; background: var(--c0); min-width: 2px; }
.across.bad { background: var(--c1); } td.bars { min-width: 180px; }
pre { margin: .4rem 0; white-space: pre-wrap; font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; }
.chat { display: flex; flex-direction: column; gap: .45rem; margin-top: .3rem; }
.bubble { max-width: min(46rem, 88%); border-radius: 14px; padding: .45rem .8rem; background: var(--other);
  align-self: flex-start;
  unicode-bidi: isolate; } .bubble p { white-space: pre-wrap; margin: 0; }
.bubble.agent { background: var(--agent); align-self: flex-end; }
.bubble.system { background: none; border: 1px dashed var(--line); }
.chip { display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: 0 .55em;
  margin-left: .3em; font-size: .8rem; }
"""
