// Figures and times as people read them. Numbers may be BigInt: offsets can be larger than what a
// JavaScript number holds exactly.

const plain = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const UNITS = ["", "k", "M", "G", "T", "P", "E"];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function missing(value) {
  return value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
}

function three(value) {
  const size = Math.abs(value);
  if (size >= 99.95) return String(Math.round(value));
  if (size >= 9.995) return String(Number(value.toFixed(1)));
  return String(Number(value.toFixed(2)));
}

function scaled(value, step, names) {
  let number = Number(value);
  let at = 0;
  while (Math.abs(number) >= step * 0.9995 && at < names.length - 1) {
    number /= step;
    at += 1;
  }
  return [three(number), names[at]];
}

// Of an ISO text, of seconds since 1970, or of a Date.
export function asDate(time) {
  if (missing(time) || time === "" || time === 0) return null;
  const date = time instanceof Date ? time : new Date(typeof time === "string" ? time : Number(time) * 1000);
  return Number.isNaN(date.getTime()) ? null : date;
}

const pad = (value, length = 2) => String(value).padStart(length, "0");

export const fmt = {
  count: (value) => (missing(value) ? "–" : plain.format(value)),

  short(value) {
    if (missing(value)) return "–";
    const [number, unit] = scaled(value, 1000, UNITS);
    return unit ? `${number} ${unit}` : number;
  },

  bytes(value) {
    if (missing(value)) return "–";
    const [number, unit] = scaled(value, 1024, SIZES);
    return `${number} ${unit}`;
  },

  rate: (value) => (missing(value) ? "–" : `${fmt.short(value)}/s`),
  bytesRate: (value) => (missing(value) ? "–" : `${fmt.bytes(value)}/s`),
  percent: (share) => (missing(share) ? "–" : `${three(share * 100)} %`),

  ms(value) {
    if (missing(value)) return "–";
    if (value >= 1000) return fmt.duration(value / 1000);
    return value >= 1 || value === 0 ? `${three(value)} ms` : `${three(value * 1000)} µs`;
  },

  // Two units at most: 3 d 4 h, 12 min, 5.2 s.
  duration(seconds) {
    if (missing(seconds)) return "–";
    const whole = Math.max(0, Number(seconds));
    if (whole < 1) return whole === 0 ? "0 s" : `${three(whole * 1000)} ms`;
    if (whole < 60) return `${three(whole)} s`;
    const parts = [
      [Math.floor(whole / 86400), "d"],
      [Math.floor(whole / 3600) % 24, "h"],
      [Math.floor(whole / 60) % 60, "min"],
      [Math.floor(whole) % 60, "s"],
    ];
    const first = parts.findIndex(([value]) => value > 0);
    return parts
      .slice(first, first + 2)
      .filter(([value]) => value > 0)
      .map(([value, unit]) => `${value} ${unit}`)
      .join(" ");
  },

  ago(time) {
    const date = asDate(time);
    if (date === null) return "–";
    const seconds = (Date.now() - date.getTime()) / 1000;
    if (Math.abs(seconds) < 2) return "now";
    return seconds < 0 ? `in ${coarse(-seconds)}` : `${coarse(seconds)} ago`;
  },

  // Local time, as people compare it with their clock.
  time(time, { ms = false, seconds = true } = {}) {
    const date = asDate(time);
    if (date === null) return "–";
    const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    let clock = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
    if (seconds) clock += `:${pad(date.getSeconds())}`;
    if (ms) clock += `.${pad(date.getMilliseconds(), 3)}`;
    return `${day} ${clock}`;
  },

  plural: (count, one, many = `${one}s`) => `${fmt.count(count)} ${Number(count) === 1 ? one : many}`,
};

// One unit: 3 d, 4 h, 12 min, 5 s.
function coarse(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
