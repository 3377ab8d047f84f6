// How uPlot draws here: colours of the theme, axes, and which points can be seen.
//
// Series differ by colour and by dashes, so that nobody has to tell colours apart.

import uPlot from "/dashboard/vendor/uplot.js";
import { fmt } from "/dashboard/core/format.js";

const LIGHT = ["#1d4ed8", "#b45309", "#0f766e", "#7e22ce", "#be123c", "#4d7c0f", "#0369a1", "#a21caf"];
const DARK = ["#8ab4ff", "#fbbf24", "#4fd1c0", "#cfa3ff", "#ff8fa3", "#b5e36a", "#66c7f4", "#f0a6f5"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 2], [12, 4]];
// Marks of bytes are at whole KiB, MiB and so on.
const BYTE_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);
const AXIS_FONT = "11px system-ui, sans-serif";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

let probe = null;

// A colour as the page shows it, whatever notation it is written in.
function channels(color) {
  probe ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = "#fff";
  probe.fillStyle = color;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

let theme = null;
let themeFor = "";

// The theme's colours, read once for as long as the theme stays the same.
export function colors() {
  const style = getComputedStyle(document.documentElement);
  const read = (name, other) => style.getPropertyValue(name).trim() || other;
  const key = ["--panel", "--ink", "--soft", "--line"].map((name) => read(name, "")).join(" ");
  if (theme === null || key !== themeFor) {
    const [red, green, blue] = channels(read("--panel", "#fff"));
    const dark = 0.3 * red + 0.6 * green + 0.1 * blue < 128;
    theme = {
      ink: read("--ink", "#111"),
      soft: read("--soft", "#555"),
      line: read("--line", "#ddd"),
      series: dark ? DARK : LIGHT,
    };
    themeFor = key;
  }
  return theme;
}

// Calls when the theme changes: by the system, or by a choice on the page.
export function onTheme(call) {
  const watch = new MutationObserver(call);
  watch.observe(document.documentElement, { attributes: true });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", call);
  return () => {
    watch.disconnect();
    media.removeEventListener("change", call);
  };
}

// The colour of a series: its own (also a CSS variable such as --bad), or the next of the palette.
export function colorOf(one, at) {
  const { series } = colors();
  const own = one.color;
  if (!own) return series[(one.palette ?? at) % series.length];
  return own.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(own).trim() : own;
}

export const dashOf = (one, at) => one.dash ?? (one.faint ? [3, 3] : DASHES[(one.palette ?? at) % DASHES.length]);

const pad = (value) => String(value).padStart(2, "0");

// Marks of the time axis: the day is said where it begins.
function timeMarks(_plot, marks, _axis, _space, increment) {
  return marks.map((mark) => {
    const date = new Date(mark * 1000);
    const midnight = date.getHours() + date.getMinutes() + date.getSeconds() === 0;
    if (midnight || increment >= 86400) return `${date.getDate()} ${MONTHS[date.getMonth()]}`;
    const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
    return increment < 60 ? `${clock}:${pad(date.getSeconds())}` : clock;
  });
}

// Between two marks of the time axis. Those of short times have seconds.
const room = (_plot, _axis, from, to) => (to - from < 400 ? 64 : 42);

// From 0, with some room above. All zeros still have an axis.
function heights(_plot, _least, most) {
  if (!(most > 0)) return [0, 1];
  return uPlot.rangeNum(0, most, { min: { pad: 0, hard: 0, mode: 1 }, max: { pad: 0.1, soft: 0, mode: 1 } });
}

// Between two gaps there is no line: such points are drawn as points.
function lonely(plot, at, all) {
  if (all) return null;
  const values = plot.data[at];
  const found = [];
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] != null && values[i - 1] == null && values[i + 1] == null) found.push(i);
  }
  return found;
}

function line(one, at) {
  const stroke = () => colorOf(one, at);
  return {
    label: one.label,
    width: one.faint ? 1 : 1.75,
    alpha: one.faint ? 0.65 : 1,
    dash: dashOf(one, at),
    stroke,
    points: { size: 4, stroke, fill: stroke, filter: lonely },
    // One line fills what is below it; several would hide each other.
    fill: one.area ? () => `${colorOf(one, at)}1f` : undefined,
  };
}

// What uPlot needs to draw `series`. `zoomed(from, to)` is called after a drag, without arguments
// after a double click; `hovered(index)` while the pointer moves.
export function plotOptions({ series, width, height, format, sync, bounds, zoomed, hovered }) {
  const soft = () => colors().soft;
  const grid = { stroke: () => colors().line, width: 1 };
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    cursor: {
      y: false,
      points: { size: 7 },
      drag: { x: true, y: false, setScale: false, dist: 5 },
      bind: {
        dblclick: () => () => {
          zoomed();
          return null;
        },
      },
      sync: sync && {
        key: sync,
        setSeries: false,
        filters: { pub: (type) => type === "mousemove" || type === "mouseleave", sub: () => true },
      },
    },
    scales: { x: { time: true, range: () => bounds() }, y: { range: heights } },
    axes: [
      { stroke: soft, font: AXIS_FONT, grid, ticks: { show: false }, size: 26, space: room, values: timeMarks },
      {
        stroke: soft,
        font: AXIS_FONT,
        grid,
        ticks: { show: false },
        space: 28,
        incrs: format === fmt.bytes || format === fmt.bytesRate ? BYTE_STEPS : undefined,
        size: (plot, values) => axisWidth(plot, values),
        values: (_plot, marks) => marks.map((mark) => format(mark)),
      },
    ],
    series: [{}, ...series.map(line)],
    hooks: {
      setCursor: [(plot) => hovered(plot.cursor.idx ?? null)],
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide < 5) return;
          const from = plot.posToVal(left, "x");
          const to = plot.posToVal(left + wide, "x");
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          zoomed(from, to);
        },
      ],
    },
  };
}

function axisWidth(plot, values) {
  if (!values?.length) return 48;
  plot.ctx.save();
  plot.ctx.font = AXIS_FONT;
  const widest = Math.max(...values.map((value) => plot.ctx.measureText(value ?? "").width));
  plot.ctx.restore();
  return Math.ceil(widest) + 14;
}
