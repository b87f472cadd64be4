"""The style sheet of `insight`'s page: light and dark, wide and narrow screens."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #16202c; --soft: #5b6877; --line: #e3e7ec;
  --c0: #2b6cde; --c1: #e8833a; --c2: #1f9d8b; --c3: #b4519f; --c4: #d3a019; --c5: #6f63cf; --c6: #4da3d9;
  --rest: #a9b4c0; --hot: #e4572e; --cold: #2b6cde; --hit: #16202c14; }
@media (prefers-color-scheme: dark) { :root { --page: #0f141a; --card: #171e26; --ink: #e8edf3; --soft: #98a5b3;
  --line: #2a343f; --c0: #6ea3ff; --c1: #ffa45e; --c2: #45cdb8; --c3: #dd86ca; --c4: #eac04a; --c5: #a49bf5;
  --c6: #7cc6f2; --rest: #5d6a78; --hot: #ff7d55; --cold: #6ea3ff; --hit: #e8edf31a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Noto Sans", sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
header p.source { color: var(--soft); margin: 0 0 16px; }
h1 { font-size: 15px; font-weight: 650; margin: 0; }
ol.lead { list-style: none; margin: 0 0 32px; padding: 0; max-width: 60rem; }
ol.lead li { font-size: clamp(18px, 2.4vw, 23px); line-height: 1.36; letter-spacing: -.01em; margin: 0 0 10px;
  padding-left: 18px; border-left: 3px solid var(--line);
  text-wrap: pretty; }
ol.lead li:first-child { border-color: var(--c0); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 0 0 40px; }
.tiles div, .card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tiles div { padding: 14px 16px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 2px 0 0; font-size: 22px; font-weight: 600; letter-spacing: -.01em; line-height: 1.25; }
.tiles small { display: block; color: var(--soft); font-size: 13px; font-weight: 400; letter-spacing: 0; }
section { margin: 0 0 36px; }
h2 { font-size: 20px; letter-spacing: -.01em; margin: 0; }
section > p { color: var(--soft); margin: 2px 0 14px; max-width: 46rem; }
.card { padding: 18px 20px; margin: 0 0 14px; }
.card > h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 0 0 14px; }
.plot { display: grid; grid-template-columns: 62px minmax(0, 1fr); }
.plot svg { width: 100%; height: 220px; display: block; overflow: visible; grid-column: 2; grid-row: 1; }
.y, .x { position: relative; color: var(--soft); font-size: 12px; line-height: 16px; }
.y { grid-column: 1; }
.y span { position: absolute; right: 10px; transform: translateY(50%); white-space: nowrap; }
.x { grid-column: 2; height: 24px; }
.x span { position: absolute; top: 8px; transform: translateX(-50%); white-space: nowrap; }
.x .first { transform: none; }
.x .last { transform: translateX(-100%); }
path { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.area { stroke: none; }
.thick, .faint, .dot { fill: none; stroke-linecap: round; }
.thick { stroke-width: 5; } .faint { stroke-width: 2; opacity: .4; } .dot { stroke-width: 12; }
.hit { fill: transparent; } .hit:hover { fill: var(--hit); }
.track { fill: var(--line); opacity: .6; }
.area.c0 { fill: var(--c0); } .area.c1 { fill: var(--c1); } .area.c2 { fill: var(--c2); } .area.c3 { fill: var(--c3); }
.area.c4 { fill: var(--c4); } .area.c5 { fill: var(--c5); } .area.c6 { fill: var(--c6); }
.area.rest { fill: var(--rest); }
path.c0 { stroke: var(--c0); } path.c1 { stroke: var(--c1); } path.c2 { stroke: var(--c2); }
path.c3 { stroke: var(--c3); } path.c4 { stroke: var(--c4); } path.c5 { stroke: var(--c5); }
path.c6 { stroke: var(--c6); } path.rest { stroke: var(--rest); }
path.area { stroke: none; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 12px 0 0 62px; padding: 0;
  font-size: 13px; color: var(--soft); }
.legend li::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 7px; background: var(--key); }
.legend .c0 { --key: var(--c0); } .legend .c1 { --key: var(--c1); } .legend .c2 { --key: var(--c2); }
.legend .c3 { --key: var(--c3); } .legend .c4 { --key: var(--c4); } .legend .c5 { --key: var(--c5); }
.legend .c6 { --key: var(--c6); } .legend .rest { --key: var(--rest); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
thead th { color: var(--soft); font-weight: 500; font-size: 12px; white-space: nowrap; vertical-align: bottom; }
th, td { text-align: right; padding: 7px 0 7px 18px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, .left { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 500; white-space: normal; min-width: 9rem; max-width: 20rem; }
td.wide { min-width: 80px; width: 22%; }
.bar { width: 100%; height: 8px; border-radius: 4px; display: block; }
.spark { width: 96px; height: 24px; display: block; margin-left: auto; }
.heat { width: auto; } .heat td, .heat th { border: 0; padding: 2px 2px; } .heat th { padding-right: 14px; }
.heat svg { width: 46px; height: 34px; display: block; }
.heat text { font-size: 11px; text-anchor: middle; fill: var(--ink); }
.hot { fill: var(--hot); } .cold { fill: var(--cold); }
.heat rect { stroke: var(--line); }
.ranges { display: grid; grid-template-columns: minmax(90px, max-content) minmax(0, 1fr); gap: 0 18px; margin: 0; }
.ranges dt { font-size: 14px; font-weight: 500; align-self: center; max-width: 15rem; }
.ranges dd { margin: 0; }
.ranges svg { width: 100%; height: 34px; display: block; overflow: visible; }
.notes { color: var(--soft); font-size: 13px; }
footer { color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); padding-top: 14px; max-width: none; }
@media (max-width: 600px) {
  main { padding: 24px 14px 40px; } .card { padding: 14px 12px; } .plot { grid-template-columns: 60px minmax(0, 1fr); }
  .plot svg { height: 180px; } .legend { margin-left: 0; } .plot .x span:nth-child(even) { display: none; }
  tbody th { min-width: 6.5rem; } th, td { padding-left: 12px; } .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .ranges { grid-template-columns: minmax(0, 1fr); } .ranges dt:empty { display: none; } .ranges dt { margin-top: 4px; }
}
@media print { body { background: none; } .card, .tiles div { break-inside: avoid; } }
"""
