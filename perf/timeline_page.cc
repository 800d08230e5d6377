// The page of a timeline: data, style and script in one file.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "perf/timeline.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHead = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>noria timeline</title>
<style>
:root { --bg: #fbfbf9; --fg: #1d2126; --muted: #667078; --line: #d9dcd6; --back: #e6ebe4;
  --bar: #2f6f9f; --fill: #8fb3cc; --exposed: #c8352b; --shade: #f6d9d5; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #16191c; --fg: #e4e7e3; --muted: #929ba1; --line: #343a3f; --back: #24302b;
    --bar: #5aa3d6; --fill: #3d627c; --exposed: #f0685c; --shade: #4a2523; } }
body { margin: 0 auto; max-width: 1120px; padding: 20px; background: var(--bg); color: var(--fg);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; }
p { color: var(--muted); margin: 4px 0 14px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--fg); }
svg .muted { fill: var(--muted); }
.back { fill: var(--back); } .shade { fill: var(--shade); } .bar { fill: var(--bar); }
.late { fill: var(--exposed); } .grid { stroke: var(--line); }
.filling { stroke: var(--fill); stroke-width: 2; }
.column { cursor: pointer; } .column.chosen rect { stroke: var(--fg); stroke-width: 1.5; }
nav { display: flex; gap: 8px; align-items: center; margin: 14px 0 6px; }
button { font: inherit; color: inherit; background: none; border: 1px solid var(--line);
  border-radius: 4px; padding: 2px 10px; cursor: pointer; }
table { border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 2px 14px 2px 0; }
th { font-weight: 500; color: var(--muted); }
.key i { display: inline-block; width: 12px; height: 10px; margin: 0 5px 0 14px; }
</style>
</head>
<body>
<h1 id="title"></h1>
<p id="about"></p>
<svg id="steps" role="img" aria-label="all steps"></svg>
<nav><button id="before">&larr;</button><strong id="name"></strong>
<button id="after">&rarr;</button>
<span class="key"><i style="background:var(--back)"></i>backward
<i style="background:var(--fill)"></i>fills<i style="background:var(--bar)"></i>on the wire, hidden
<i style="background:var(--exposed)"></i>on the wire, exposed
<i style="background:var(--shade)"></i>exposed</span></nav>
<svg id="step" role="img" aria-label="the chosen step"></svg>
<table id="figures"></table>
<script type="application/json" id="data">)page";

constexpr const char* kScript = R"page(</script>
<script>
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const ms = us => (us / 1000).toFixed(us < 10000 ? 3 : 2);
const sized = bytes =>
  bytes < 1e6 ? (bytes / 1e3).toFixed(1) + ' kB' : (bytes / 1e6).toFixed(1) + ' MB';
const WIDTH = 1100, LEFT = 70, RIGHT = 10;
let chosen = data.steps.length - 1;

function draw(parent, kind, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}
function clear(svg, height) {
  svg.replaceChildren();
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${height}`);
}
const present = step => step.ranks.filter(rank => rank !== null);
const longest = (step, of) => Math.max(...present(step).map(of));

function drawSteps() {
  const svg = at('steps'), height = 90;
  clear(svg, height + 14);
  const top = Math.max(...data.steps.map(step => longest(step, rank => rank.e - rank.b)), 1);
  const width = (WIDTH - LEFT - RIGHT) / Math.max(data.steps.length, 1);
  draw(svg, 'text', {x: 0, y: 10, class: 'muted'}, ms(top) + ' ms');
  data.steps.forEach((step, i) => {
    const whole = longest(step, rank => rank.e - rank.b);
    const exposed = longest(step, rank => rank.e - rank.l), y = height * (1 - whole / top);
    const column = draw(svg, 'g', {class: 'column' + (i === chosen ? ' chosen' : '')});
    const box = {x: LEFT + i * width, width: Math.max(Math.min(width - 1, 30), 0.5)};
    draw(column, 'rect', {...box, y, height: height * whole / top, class: 'back'});
    draw(column, 'rect', {...box, y, height: height * exposed / top, class: 'late'});
    if (width >= 100)
      draw(column, 'text', {x: box.x, y: height + 11, class: 'muted'}, step.name);
    draw(column, 'title', {},
      `${step.name}: ${ms(whole)} ms, exposed ${ms(exposed)} ms (slowest rank)`);
    column.addEventListener('click', () => choose(i));
  });
}

function drawAxis(svg, x, span, height) {
  const rough = span / 8, power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  const digits = Math.max(0, 3 - Math.floor(Math.log10(tick) + 1e-9));
  for (let i = 0; i * tick <= span; ++i) {
    const place = x(i * tick), label = (i * tick / 1000).toFixed(i === 0 ? 0 : digits) + ' ms';
    draw(svg, 'line', {x1: place, x2: place, y1: 14, y2: height, class: 'grid'});
    if (place < WIDTH - 50) draw(svg, 'text', {x: place + 2, y: 10, class: 'muted'}, label);
  }
}

function drawBucket(svg, bucket, rank, x, y, row) {
  const group = draw(svg, 'g', {}), middle = y + row / 2;
  if (bucket.f !== null)
    draw(group, 'line', {x1: x(bucket.f), x2: Math.max(x(bucket.r), x(bucket.f) + 1),
      y1: middle, y2: middle, class: 'filling'});
  const bar = (from, to, kind) => draw(group, 'rect', {x: x(from),
    width: Math.max(x(to) - x(from), 0.75), y: y + row * 0.12, height: row * 0.76, class: kind});
  if (bucket.s < rank.l) bar(bucket.s, Math.min(bucket.e, rank.l), 'bar');
  if (bucket.e > rank.l) bar(Math.max(bucket.s, rank.l), bucket.e, 'late');
  const wait = bucket.q === null ? '' : `\nwaited ${ms(bucket.s - bucket.q)} ms for the wire`;
  draw(group, 'title', {}, `${bucket.n}: ${sized(bucket.z)}, ${bucket.t} tensors\n` +
    `on the wire ${ms(bucket.s)} to ${ms(bucket.e)} ms, of which ${ms(bucket.w)} ms busy\n` +
    `last gradient at ${ms(bucket.r)} ms` + wait);
}

function drawStep() {
  const step = data.steps[chosen], ranks = present(step), svg = at('step');
  at('name').textContent = step.name;
  const rows = Math.max(...ranks.map(rank => rank.buckets.length), 1);
  const row = rows > 64 ? 4 : rows > 24 ? 8 : 13, block = rows * row + 26;
  const from = Math.min(...ranks.map(rank => rank.b));
  const span = Math.max(...ranks.map(rank => rank.e)) - from;
  const scale = (WIDTH - LEFT - RIGHT) / Math.max(span, 1e-3);
  const height = 20 + ranks.length * block;
  const x = t => LEFT + t * scale, move = t => t === null ? null : t - from;
  const moved_of = given => ({b: move(given.b), l: move(given.l), e: move(given.e)});
  const top = i => 20 + i * block;
  clear(svg, height);
  ranks.forEach((given, i) => {
    const rank = moved_of(given);
    const shade = (begin, end, kind) => draw(svg, 'rect', {x: x(begin), y: top(i),
      height: block - 8, width: Math.max(x(end) - x(begin), 0.75), class: kind});
    shade(rank.b, rank.l, 'back');
    shade(rank.l, rank.e, 'shade');
  });
  drawAxis(svg, x, span, height);
  step.ranks.forEach((given, i) => {
    if (given === null) return;
    const rank = moved_of(given), y = top(ranks.indexOf(given));
    draw(svg, 'text', {x: 0, y: y + 13}, 'rank ' + data.ranks[i].rank);
    draw(svg, 'text', {x: x(rank.b) + 4, y: y + 12, class: 'muted'},
      `backward ${ms(rank.l - rank.b)} ms`);
    draw(svg, 'text', {x: Math.min(x(rank.e) - 2, WIDTH - RIGHT), y: y + 12, 'text-anchor': 'end'},
      `exposed ${ms(rank.e - rank.l)} ms`);
    given.buckets.forEach((bucket, b) => {
      const moved = {...bucket};
      for (const time of 'fqrse') moved[time] = move(bucket[time]);
      drawBucket(svg, moved, rank, x, y + 17 + b * row, row);
    });
  });
  drawFigures(step);
}

function drawFigures(step) {
  const table = at('figures');
  table.replaceChildren();
  const line = (cells, kind) => {
    const row = table.insertRow();
    for (const cell of cells) row.appendChild(document.createElement(kind)).textContent = cell;
  };
  line(['', 'step ms', 'backward ms', 'communication ms', 'exposed ms', 'hidden', 'bytes'],
    'th');
  step.ranks.forEach((rank, i) => {
    if (rank === null) return;
    const sum = of => rank.buckets.reduce((total, bucket) => total + of(bucket), 0);
    const wire = sum(bucket => bucket.w), exposed = rank.e - rank.l;
    const hidden = wire > 0 ? Math.max(0, 100 * (1 - exposed / wire)).toFixed(0) + ' %' : '';
    line(['rank ' + data.ranks[i].rank, ms(rank.e - rank.b), ms(rank.l - rank.b), ms(wire),
      ms(exposed), hidden, sized(sum(bucket => bucket.z))], 'td');
  });
}

function choose(index) {
  chosen = Math.min(Math.max(index, 0), data.steps.length - 1);
  drawSteps();
  drawStep();
}

at('title').textContent = data.title;
at('about').textContent = data.ranks.map(rank => `rank ${rank.rank}` +
  (rank.host ? ` on ${rank.host}` : '') +
  (rank.error > 0 ? `, clock within ${rank.error} us of rank 0's` : '')).join('; ') +
  '. Times are on the clock of rank 0. Hover for figures, arrows for other steps.';
if (data.steps.length > 0) {
  at('before').addEventListener('click', () => choose(chosen - 1));
  at('after').addEventListener('click', () => choose(chosen + 1));
  document.addEventListener('keydown', event => {
    if (event.key === 'ArrowLeft') choose(chosen - 1);
    if (event.key === 'ArrowRight') choose(chosen + 1);
  });
  choose(chosen);
}
</script>
</body>
</html>
)page";

// Tenths of a microsecond are as fine as a picture shows, and keep the page small.
class Clock {
 public:
  explicit Clock(int64_t zero_ns) : zero_ns_(zero_ns) {}
  double span(int64_t ns) const { return std::round(static_cast<double>(ns) * 1e-2) / 10; }
  double at(int64_t ns) const { return span(ns - zero_ns_); }
  Json at_if_known(int64_t ns) const { return ns == 0 ? Json(nullptr) : Json(at(ns)); }

 private:
  int64_t zero_ns_;
};

Json words_of(const TimelineStep& step, const Clock& clock) {
  Json buckets = Json::array();
  for (const TimelineBucket& bucket : step.buckets)
    buckets.push_back({{"n", bucket.name},
                       {"z", bucket.bytes},
                       {"t", bucket.tensors},
                       {"f", clock.at_if_known(bucket.first_ns)},
                       {"q", clock.at_if_known(bucket.queued_ns)},
                       {"r", clock.at(bucket.ready_ns)},
                       {"s", clock.at(bucket.start_ns)},
                       {"e", clock.at(bucket.end_ns)},
                       {"w", clock.span(bucket.wire_ns)}});
  return {{"b", clock.at(step.begin_ns)},
          {"l", clock.at(step.last_gradient_ns)},
          {"e", clock.at(step.end_ns)},
          {"buckets", std::move(buckets)}};
}

// Steps in the order of their begin, each with a place for every rank, some of which may lack it.
Json steps_of(const Timeline& timeline) {
  int64_t zero = INT64_MAX;
  std::map<std::string, int64_t> begins;
  for (const TimelineRank& rank : timeline.ranks)
    for (const TimelineStep& step : rank.steps) {
      zero = std::min(zero, step.begin_ns);
      const auto known = begins.try_emplace(step.name, step.begin_ns).first;
      known->second = std::min(known->second, step.begin_ns);
    }
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, begin] : begins) order.emplace_back(begin, name);
  std::sort(order.begin(), order.end());

  const Clock clock(zero);
  std::map<std::string, Json> by_name;
  for (size_t r = 0; r < timeline.ranks.size(); ++r)
    for (const TimelineStep& step : timeline.ranks[r].steps) {
      Json& places = by_name[step.name];
      if (places.is_null()) places = Json(std::vector<Json>(timeline.ranks.size()));
      places[r] = words_of(step, clock);
    }
  Json steps = Json::array();
  for (const auto& [begin, name] : order)
    steps.push_back({{"name", name}, {"ranks", std::move(by_name[name])}});
  return steps;
}

// No text of a trace ends the script that holds it.
std::string inside_script(const Json& json) {
  std::string text;
  for (const char c : json.dump()) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string timeline_page(const Timeline& timeline) {
  Json data{{"title", timeline.title}, {"ranks", Json::array()}, {"steps", steps_of(timeline)}};
  for (const TimelineRank& rank : timeline.ranks)
    data["ranks"].push_back(
        {{"rank", rank.rank},
         {"host", rank.host},
         {"error", std::ceil(static_cast<double>(rank.clock_error_ns) * 1e-3)}});
  return kHead + inside_script(data) + kScript;
}

}  // namespace noria::perf
