// Metrics over time, as the broker keeps them. All charts show the same time, and move together.

import { Badge, Button, html, openDialog, Page, Problem, Select, useMemo, useState, useStyles } from "/dashboard/core/ui.js";
import { formatOf, linesOf, SPANS, TimeChart, useHistory } from "/dashboard/core/chart.js";
import { fmt } from "/dashboard/core/format.js";
import { useKey } from "/dashboard/core/keys.js";
import { useCommand } from "/dashboard/core/palette.js";
import { setParams, useParam } from "/dashboard/core/router.js";
import { AddChart, OWN_SERIES_MAX, ownLabel, ownTitle, readCharts, SECTIONS } from "/dashboard/pages/metric_charts.js";

const RANGES = [
  ["5m", "5 m", "5 minutes"],
  ["15m", "15 m", "15 minutes"],
  ["1h", "1 h", "hour"],
  ["24h", "24 h", "24 hours"],
  ["7d", "7 d", "7 days"],
];
const ALL_NAMES = SECTIONS.flatMap(({ charts }) => charts.flatMap(({ names }) => names));
const DAY = 86_400;
// Nothing is kept for longer.
const KEPT = 14 * DAY;

// How many seconds earlier the faint lines are from, and how they are called.
function earlier(compare, span) {
  if (compare === "period") return [Math.round(span), `${fmt.duration(Math.round(span))} before`];
  if (compare === "day") return [DAY, "a day before"];
  if (compare === "week") return [7 * DAY, "a week before"];
  return [0, ""];
}

const whole = (from, to) => ({ from: Math.floor(from), to: Math.max(Math.ceil(to), Math.floor(from) + 10) });

export default function MetricsPage() {
  useStyles("metrics");
  const [range, setRange] = useParam("range", "1h");
  const [compare, setCompare] = useParam("compare", "");
  const [from] = useParam("from", "");
  const [to] = useParam("to", "");
  const [chartsText, setChartsText] = useParam("charts", "");
  const [paused, setPaused] = useState(false);
  const part = Number(from) > 0 && Number(to) > Number(from) ? [Number(from), Number(to)] : null;
  const span = part ? part[1] - part[0] : (SPANS[range] ?? 3600);
  const [before, beforeLabel] = earlier(compare, span);
  const options = { range, window: part, before, paused };
  const own = useMemo(() => readCharts(chartsText), [chartsText]);
  const ownNames = useMemo(() => [...new Set(own.flat())].slice(0, OWN_SERIES_MAX), [own]);
  const all = useHistory(ALL_NAMES, options);
  const mine = useHistory(ownNames, options);

  const zoom = (begin, end) => setParams(begin === undefined ? { from: undefined, to: undefined } : whole(begin, end));
  const choose = (next) => setParams({ range: next === "1h" ? undefined : next, from: undefined, to: undefined });
  const setOwn = (charts) => setChartsText(charts.length ? JSON.stringify(charts) : "");
  const add = () => openDialog(({ close }) => html`<${AddChart} close=${close} onAdd=${(names) => setOwn([...own, names])} />`);
  const pause = () => setPaused(!paused);

  useKey("p", paused ? "Resume" : "Pause", pause);
  useKey("a", "Add a chart", add);
  useKey("Escape", "Show the whole time range again", () => part && zoom());
  useCommand("Add a chart of metrics", add);
  const shown = { part, zoom, before: beforeLabel };

  return html`<${Page}
    title="Metrics"
    subtitle="Kept by the broker itself, for two weeks. Drag across a chart to zoom in; all charts follow."
    actions=${html`<${Button} icon=${paused ? "play" : "pause"} onClick=${pause} aria-pressed=${paused}>${paused ? "Resume" : "Pause"}<//>
      <${Button} kind="primary" icon="plus" onClick=${add}>Add a chart<//>`}
  >
    <div class="toolbar metric-bar">
      <div class="metric-ranges" role="group" aria-label="Time range">
        ${RANGES.map(
          ([id, text, words]) => html`<button
            key=${id}
            type="button"
            class="button"
            aria-pressed=${!part && id === range}
            aria-label=${`Last ${words}`}
            onClick=${() => choose(id)}
          >${text}</button>`,
        )}
      </div>
      <${Select}
        label="Compare with"
        hideLabel
        value=${compare}
        options=${[["", "Compare with…"], ["period", "Compared with the time before"], ["day", "Compared with a day before"], ["week", "Compared with a week before"]]}
        onChange=${setCompare}
      />
      <${Status} paused=${paused} part=${part} data=${all.data} stale=${all.stale} />
    </div>
    ${part && html`<${Window} part=${part} zoom=${zoom} range=${range} />`}
    ${all.error && !all.data && html`<${Problem} error=${all.error} onRetry=${all.reload} />`}
    ${own.length > 0 &&
    html`<section class="metric-section" aria-label="Your charts">
      <h2>Your charts</h2>
      <div class="metric-grid">
        ${own.map(
          (names, i) => html`<${OwnChart}
            key=${names.join("\n")}
            names=${names}
            answer=${mine}
            ...${shown}
            onRemove=${() => setOwn(own.filter((_, at) => at !== i))}
          />`,
        )}
      </div>
    </section>`}
    ${(all.data || !all.error) &&
    SECTIONS.map(
      ({ title, charts }) => html`<section key=${title} class="metric-section" aria-label=${title}>
        <h2>${title}</h2>
        <div class="metric-grid">
          ${charts.map((chart) => html`<${Chart} key=${chart.title} ...${chart} answer=${all} ...${shown} />`)}
        </div>
      </section>`,
    )}
  <//>`;
}

function Status({ paused, part, data, stale }) {
  if (paused) return html`<${Badge} kind="warn" icon="pause">paused<//>`;
  if (stale) return html`<${Badge} kind="warn">the broker does not answer<//>`;
  if (!data) return null;
  const each = fmt.duration(data.resolution_seconds);
  return html`<span class="soft">${part ? "" : "Live. "}One value every ${each}.</span>`;
}

// What is shown instead of the last minutes or days, and how to move it.
function Window({ part: [from, to], zoom, range }) {
  const span = to - from;
  const now = Date.now() / 1000;
  const move = (by) => zoom(from + by, to + by);
  const out = () => {
    const end = Math.min(now, to + span / 2);
    zoom(Math.max(end - 2 * span, now - KEPT), end);
  };
  const words = RANGES.find(([id]) => id === range)?.[2] ?? "hour";
  return html`<div class="notice row" role="group" aria-label="Shown time">
    <span>From <b>${fmt.time(from)}</b> to <b>${fmt.time(to)}</b> (${fmt.duration(span)})</span>
    <span class="spacer"></span>
    <${Button} icon="left" onClick=${() => move(-span / 2)}>Earlier<//>
    <${Button} icon="right" disabled=${to >= now - 5} onClick=${() => move(Math.min(span / 2, now - to))}>Later<//>
    <${Button} onClick=${out}>Zoom out<//>
    <${Button} onClick=${() => zoom()} title="Escape">Back to the last ${words}<//>
  </div>`;
}

function Chart({ title, names, labels, answer, part, zoom, before }) {
  const { data } = answer;
  const series = useMemo(
    () => data && linesOf(data, names, Object.fromEntries(names.map((name, i) => [name, labels[i]])), before),
    [data, before],
  );
  return html`<div class="metric-chart">
    <${TimeChart}
      title=${title}
      times=${data?.times}
      series=${series}
      from=${data?.from}
      to=${data?.to}
      format=${formatOf(data?.series.find((one) => one.name === names[0])?.unit)}
      sync="metrics"
      height=${140}
      zoomed=${part !== null}
      onZoom=${zoom}
      empty="Nothing was measured in this time."
    />
  </div>`;
}

function OwnChart({ names, answer, part, zoom, before, onRemove }) {
  const { data, error } = answer;
  const title = ownTitle(names);
  const series = useMemo(() => {
    if (!data) return undefined;
    const known = new Map(data.series.map((one) => [one.name, one.label]));
    return linesOf(data, names, Object.fromEntries(names.map((name) => [name, ownLabel(name, known.get(name))])), before);
  }, [data, before]);
  const failed = error && !data;
  return html`<div class="metric-chart">
    <${TimeChart}
      title=${title}
      times=${failed ? [] : data?.times}
      series=${failed ? [] : series}
      from=${data?.from}
      to=${data?.to}
      format=${formatOf(data?.series.find((one) => one.name === names[0])?.unit)}
      sync="metrics"
      height=${140}
      zoomed=${part !== null}
      onZoom=${zoom}
      empty=${failed ? error.message : "Nothing was measured in this time. The broker measures it from now on, while somebody looks."}
      actions=${html`<button type="button" class="chart-button" aria-label=${`Remove the chart ${title}`} onClick=${onRemove}>Remove</button>`}
    />
  </div>`;
}
