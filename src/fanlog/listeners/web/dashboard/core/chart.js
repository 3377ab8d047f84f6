// Charts over time: `TimeChart` draws what it is given, `HistoryChart` asks the broker for what it
// keeps, and `Spark` is a tiny line for tables.
//
// Charts with the same `sync` show the pointer together. A drag zooms in; a double click or Escape
// goes back. Where there is no value there is no line. Everything that is drawn can also be heard:
// a label with the newest, lowest and highest values, arrow keys to walk, and a table.

import uPlot from "/dashboard/vendor/uplot.js";
import { html, useEffect, useMemo, useRef, useState } from "/dashboard/vendor/htm-preact.js";
import { usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { colorOf, dashOf, onTheme, plotOptions } from "/dashboard/core/plot.js";

const ROWS_MAX = 100;

for (const path of ["/dashboard/vendor/uplot.css", "/dashboard/core/chart.css"]) {
  if (!document.querySelector(`link[href="${path}"]`)) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: path }));
  }
}

const number = (value) => (value === null || value === undefined ? null : Number(value));

function newest(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}

function extremes(values) {
  let least = Infinity;
  let most = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return most === -Infinity ? null : [least, most];
}

// A chart in words, for those who do not see it.
function inWords(title, series, format) {
  const parts = series.map((one) => {
    const found = extremes(one.values);
    if (found === null) return `${one.label}: no data`;
    return `${one.label}: newest ${format(newest(one.values))}, lowest ${format(found[0])}, highest ${format(found[1])}`;
  });
  return `Chart${title ? ` of ${title}` : ""}. ${parts.join(". ")}.`;
}

// `times` are Unix seconds, `series` a list of {label, values, color?, faint?}; null is a gap.
// `from` and `to` bound the time axis. With `onZoom` the owner zooms: it gets (from, to), or
// nothing to go back; without, the chart zooms itself.
export function TimeChart({
  title,
  times,
  series,
  format = fmt.short,
  height = 160,
  sync,
  onZoom,
  zoomed,
  from,
  to,
  empty = "No data yet.",
  actions,
}) {
  const [asTable, setAsTable] = useState(false);
  const [hidden, setHidden] = useState(() => new Set());
  const [own, setOwn] = useState(null);
  const [at, setAt] = useState(null);
  const clean = useMemo(
    () => (series ?? []).map((one) => ({ ...one, values: (one.values ?? []).map(number) })),
    [series],
  );
  const loading = times === undefined || series === undefined;
  const some = !loading && clean.some((one) => one.values.some((value) => value !== null));
  const zoom = (begin, end) => {
    if (onZoom) onZoom(begin, end);
    else setOwn(begin === undefined ? null : [begin, end]);
  };
  const isZoomed = onZoom ? zoomed : own !== null;
  const bounds = own ?? (from !== undefined && to !== undefined ? [from, to] : null);
  const toggle = (label) => {
    const next = new Set(hidden);
    if (!next.delete(label)) next.add(label);
    setHidden(next);
  };
  const shown = useMemo(() => clean.map((one) => ({ ...one, hidden: hidden.has(one.label) })), [clean, hidden]);

  return html`<figure class="chart" aria-label=${title}>
    <figcaption class="chart-head">
      <span class="chart-title">${title}</span>
      <span class="chart-actions">
        ${actions}
        ${isZoomed &&
        html`<button type="button" class="chart-button" onClick=${() => zoom()}>Reset zoom</button>`}
        ${some &&
        html`<button
          type="button"
          class="chart-button"
          aria-pressed=${asTable}
          title=${asTable ? "Show the chart" : "Show as table"}
          aria-label=${`Show ${title ?? "the chart"} as table`}
          onClick=${() => setAsTable(!asTable)}
        >
          ${asTable ? "Chart" : "Table"}
        </button>`}
      </span>
    </figcaption>
    ${asTable && some
      ? html`<${DataTable} title=${title} times=${times} series=${clean} format=${format} />`
      : html`<${Canvas}
            ...${{ title, times, format, height, sync, bounds, zoom, setAt, at }}
            series=${shown}
            note=${loading ? "Loading…" : some ? "" : empty}
          />
          ${some && html`<${Legend} series=${shown} times=${times} at=${at} format=${format} toggle=${toggle} />`}`}
  </figure>`;
}

function Canvas({ title, times, series, format, height, sync, bounds, zoom, setAt, at, note }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const [width, setWidth] = useState(0);
  const [spoken, setSpoken] = useState("");
  // What uPlot calls back reads the newest of these.
  const now = useRef({});
  now.current = { bounds: bounds ?? (times?.length ? [times[0], times[times.length - 1]] : null), zoom, setAt };
  const shape = JSON.stringify([series.map((one) => [one.label, one.faint, one.color, one.hidden]), sync, height]);
  const wanted = !note && width > 0;

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(holder.current);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    if (!wanted) return undefined;
    const options = plotOptions({
      series: series.length === 1 ? [{ ...series[0], area: true }] : series,
      width,
      height,
      format,
      sync,
      bounds: () => now.current.bounds ?? [null, null],
      zoomed: (...where) => now.current.zoom(...where),
      hovered: (index) => now.current.setAt(index),
    });
    series.forEach((one, i) => {
      options.series[i + 1].show = !one.hidden;
    });
    const made = new uPlot(options, [times, ...series.map((one) => one.values)], holder.current);
    plot.current = made;
    const forget = onTheme(() => made.redraw(false));
    return () => {
      forget();
      plot.current = null;
      made.destroy();
    };
  }, [wanted, shape]);

  useEffect(() => plot.current?.setData([times, ...series.map((one) => one.values)]), [times, series]);
  useEffect(() => {
    if (plot.current && width) plot.current.setSize({ width, height });
  }, [width, height]);
  useEffect(() => plot.current?.setData(plot.current.data), [bounds?.[0], bounds?.[1]]);

  function walk(event) {
    if (event.key === "Escape") return zoom();
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !plot.current) return undefined;
    event.preventDefault();
    const last = times.length - 1;
    const next = Math.max(0, Math.min(last, (at ?? (step < 0 ? last + 1 : -1)) + step));
    plot.current.setCursor({ left: plot.current.valToPos(times[next], "x"), top: 10 });
    const values = series.filter((one) => !one.hidden).map((one) => `${one.label} ${format(one.values[next])}`);
    setSpoken(`${fmt.time(times[next])}: ${values.join(", ")}`);
    return undefined;
  }

  return html`<div class="chart-plot" style=${{ minHeight: `${height}px` }}>
    <div
      ref=${holder}
      class="chart-holder"
      role="img"
      tabindex=${note ? undefined : 0}
      aria-label=${note ? `Chart${title ? ` of ${title}` : ""}. ${note}` : inWords(title, series, format)}
      onKeyDown=${walk}
    ></div>
    <span class="chart-spoken" role="status">${spoken}</span>
    ${note && html`<p class="chart-note">${note}</p>`}
  </div>`;
}

// The lines with their values where the pointer is, or their newest. A click hides a line.
function Legend({ series, times, at, format, toggle }) {
  const when = at === null || at === undefined ? null : times[at];
  return html`<div class="chart-legend">
    <span class="chart-when">${when ? fmt.time(when) : "Newest"}</span>
    ${series.map((one, i) => {
      const value = when ? one.values[at] : newest(one.values);
      return html`<button
        key=${one.label}
        type="button"
        class=${one.hidden ? "chart-key chart-hidden" : "chart-key"}
        aria-pressed=${!one.hidden}
        title=${one.hidden ? `Show ${one.label}` : `Hide ${one.label}`}
        onClick=${() => toggle(one.label)}
      >
        <${Mark} one=${one} at=${i} />${" "}
        <span class="chart-label">${one.label}</span>${" "}
        <b>${value === null || value === undefined ? "–" : format(value)}</b>
      </button>`;
    })}
  </div>`;
}

function Mark({ one, at }) {
  const [, redraw] = useState(0);
  useEffect(() => onTheme(() => redraw((count) => count + 1)), []);
  return html`<svg class="chart-mark" width="18" height="8" aria-hidden="true">
    <line
      x1="0"
      y1="4"
      x2="18"
      y2="4"
      stroke=${colorOf(one, at)}
      stroke-width=${one.faint ? 1.5 : 2.5}
      stroke-dasharray=${dashOf(one, at).join(" ") || undefined}
      opacity=${one.faint ? 0.7 : 1}
    />
  </svg>`;
}

// The newest values, newest first.
function DataTable({ title, times, series, format }) {
  const rows = [];
  for (let i = times.length - 1; i >= 0 && rows.length < ROWS_MAX; i -= 1) {
    if (series.some((one) => one.values[i] !== null && one.values[i] !== undefined)) rows.push(i);
  }
  return html`<div class="chart-table" tabindex="0" role="region" aria-label=${`${title ?? "Chart"} as table`}>
    <table>
      <caption>
        ${rows.length === ROWS_MAX ? `The newest ${ROWS_MAX} values.` : `${rows.length} values, newest first.`}
      </caption>
      <thead>
        <tr>
          <th scope="col">Time</th>
          ${series.map((one) => html`<th key=${one.label} scope="col">${one.label}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (i) => html`<tr key=${times[i]}>
            <th scope="row">${fmt.time(times[i])}</th>
            ${series.map((one) => html`<td key=${one.label}>${format(one.values[i])}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

// A tiny line: how a value went. `values` may have gaps; `label` says what it is.
export function Spark({ values, label = "", width = 80, height = 20, format = fmt.short }) {
  const clean = (values ?? []).map(number);
  const found = extremes(clean);
  if (found === null) return html`<span class="spark-none" aria-label=${`${label}: no data`} role="img">–</span>`;
  const [, most] = found;
  const across = (i) => 1 + (i / Math.max(1, clean.length - 1)) * (width - 2);
  const up = (value) => height - 2 - (Math.max(0, value) / (most || 1)) * (height - 4);
  let path = "";
  let drawing = false;
  clean.forEach((value, i) => {
    if (value !== null) {
      // A point between two gaps is a short line.
      const alone = !drawing && (clean[i + 1] === null || clean[i + 1] === undefined);
      path += `${drawing ? "L" : "M"}${across(i).toFixed(1)} ${up(value).toFixed(1)}${alone ? "h1" : ""}`;
    }
    drawing = value !== null;
  });
  const words = `${label ? `${label}: ` : ""}newest ${format(newest(clean))}, highest ${format(most)}`;
  return html`<svg class="spark" role="img" aria-label=${words} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    <title>${words}</title>
    <path d=${path} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" />
  </svg>`;
}

// How values of a unit are written.
export function formatOf(unit) {
  if (unit === "bytes/s") return fmt.bytesRate;
  if (unit === "bytes") return fmt.bytes;
  if (unit === "seconds") return (value) => (value === null || value === undefined ? "–" : fmt.ms(value * 1000));
  if (unit === "share") return fmt.percent;
  return unit?.endsWith("/s") ? fmt.rate : fmt.short;
}

// How often it makes sense to ask: a long range has few points.
export const pollMs = (range) => ({ "24h": 60_000, "7d": 120_000 })[range] ?? 10_000;

export const SPANS = { "5m": 300, "15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800 };

// What the broker kept of some series. `window` is [from, to] instead of a range; `before` is how
// many seconds earlier a second, faint line is taken from.
export function useHistory(names, { range = "1h", window: part = null, before = 0, paused = false, every } = {}) {
  const params = { name: names, ...(part ? { from: part[0], to: part[1] } : { range }), before: before || undefined };
  const pause = paused || part !== null;
  return usePoll(names.length ? "/v1/metrics/history" : null, params, pause ? 0 : (every ?? pollMs(range)));
}

// The lines of an answer of /v1/metrics/history, for `TimeChart`.
export function linesOf(data, names, labels = {}, beforeLabel = "before") {
  const byName = new Map(data.series.map((one) => [one.name, one]));
  return names.flatMap((name, i) => {
    const one = byName.get(name);
    if (!one) return [];
    const label = labels[name] ?? one.label ?? name;
    const lines = [{ label, values: one.values, palette: i }];
    if (one.before) lines.push({ label: `${label}, ${beforeLabel}`, values: one.before, palette: i, faint: true });
    return lines;
  });
}

// A chart of series that the broker keeps. `names` such as ["topic.orders.messages"]; `labels` by
// name. It zooms by itself and then shows finer values, if there are.
export function HistoryChart({ title, names, labels, range = "1h", format, height, sync, before, empty, every }) {
  const [part, setPart] = useState(null);
  const { data, error } = useHistory(names, { range, window: part, before, every });
  useEffect(() => setPart(null), [range, names.join("\n")]);
  const series = useMemo(() => data && linesOf(data, names, labels), [data]);
  const failed = error && !data ? `The history can't be shown: ${error.message}` : undefined;
  return html`<${TimeChart}
    title=${title}
    times=${failed ? [] : data?.times}
    series=${failed ? [] : series}
    from=${data?.from}
    to=${data?.to}
    format=${format ?? formatOf(data?.series[0]?.unit)}
    height=${height}
    sync=${sync}
    zoomed=${part !== null}
    onZoom=${(begin, end) => setPart(begin === undefined ? null : [Math.floor(begin), Math.ceil(end)])}
    empty=${failed ?? empty ?? "No history yet. The broker takes a value every 5 seconds."}
  />`;
}
