// The settings of a topic as people write them: 7d, 128 MiB. Fields for creating and changing topics,
// and the settings in words.

import { Field, html, Select } from "/dashboard/core/ui.js";
import { fmt } from "/dashboard/core/format.js";

const SECONDS = { s: 1, sec: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };
const BYTES = { "": 1, b: 1, k: 1024, kb: 1024, kib: 1024, m: 1024 ** 2, mb: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gb: 1024 ** 3, gib: 1024 ** 3, t: 1024 ** 4, tb: 1024 ** 4, tib: 1024 ** 4 };

// A number with a unit; throws a sentence that says how to write it.
function measure(text, units, fallback, example) {
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text.trim());
  const unit = units[found?.[2].toLowerCase() || fallback];
  const value = found && unit ? Math.round(Number(found[1]) * unit) : NaN;
  if (!Number.isSafeInteger(value)) throw new Error(`Write a number with a unit, such as ${example}.`);
  return value;
}

const KINDS = {
  duration: { read: (text) => measure(text, SECONDS, "s", "7d, 12h or 30min"), show: (value) => unitOf(value, [[86400, "d"], [3600, "h"], [60, "min"]], "s") },
  bytes: { read: (text) => measure(text, BYTES, "", "64 MiB or 10 GiB"), show: (value) => unitOf(value, [[1024 ** 4, " TiB"], [1024 ** 3, " GiB"], [1024 ** 2, " MiB"], [1024, " KiB"]], " B") },
  count: { read: (text) => measure(text, { "": 1, k: 1000, m: 1e6 }, "", "10 or 2000"), show: String },
  text: { read: (text) => text, show: String },
  choice: { read: (text) => text, show: String },
};

// The largest unit that says it exactly.
function unitOf(value, units, base) {
  const number = Number(value);
  if (number === 0) return "0";
  const unit = units.find(([size]) => number >= size && number % size === 0);
  return unit ? `${number / unit[0]}${unit[1]}` : `${value}${base}`;
}

const DURABILITY = [["memory", "memory – lost at a restart"], ["os", "os – survives a broker crash"], ["fsync", "fsync – survives a power failure"]];
const COMPRESSION = ["producer", "none", "zlib", "zstd", "lz4"].map((name) => [name, name === "producer" ? "as the producer sends it" : name]);
const always = () => true;
const compacts = (values) => values.cleanup === "compact";

// `more`: behind “More settings”. `when` says for which other values a field makes sense.
export const SETTINGS = [
  { key: "partitions", label: "Partitions", kind: "count", hint: "Independent, ordered parts. You can add some later, but not remove any.", alter: false },
  { key: "durability", label: "Durability", kind: "choice", options: DURABILITY, hint: "When a message is acknowledged. You can raise it later, but not lower it." },
  { key: "cleanup", label: "Cleanup", kind: "choice", options: [["delete", "delete – by age and size"], ["compact", "compact – keep the last of each key"]], hint: "How old messages are removed." },
  { key: "retention_seconds", label: "Keep messages for", kind: "duration", hint: "Such as 7d. 0 keeps everything.", zero: "for ever" },
  { key: "retention_bytes", label: "Keep at most, for each partition", kind: "bytes", hint: "Such as 10 GiB. 0 means no limit.", zero: "no limit" },
  { key: "message_bytes_max", label: "Largest message", kind: "bytes", hint: "The broker refuses larger ones.", more: true },
  { key: "compression", label: "Compression", kind: "choice", options: COMPRESSION, more: true },
  { key: "expire_seconds", label: "Delete the topic when unused for", kind: "duration", hint: "The whole topic, when nothing was published in that time. 0 keeps it.", zero: "never", more: true },
  { key: "tombstone_seconds", label: "Keep deletes for", kind: "duration", hint: "How long a compacted topic keeps messages without a value.", more: true, when: compacts },
  { key: "compact_after_bytes", label: "Compact after", kind: "bytes", hint: "Bytes of full files that start a compaction.", more: true, when: compacts },
  { key: "messages_per_second_max", label: "Most messages a second", kind: "count", hint: "By all publishers together. 0 means no limit.", zero: "no limit", more: true },
  { key: "bytes_per_second_max", label: "Most bytes a second", kind: "bytes", hint: "As they are stored. 0 means no limit.", zero: "no limit", more: true },
  { key: "segment_bytes", label: "Size of a log file", kind: "bytes", more: true },
  { key: "tail_bytes", label: "Newest bytes in memory, for each partition", kind: "bytes", more: true },
  { key: "owner", label: "Owner", kind: "text", hint: "The user or key whose quota the topic counts for.", more: true, admin: true },
].map((one) => ({ when: always, ...one }));

// The text of a value, for a field.
export const asText = (setting, value) => (value === undefined || value === null ? "" : KINDS[setting.kind].show(value));

// A value in words, for people who only read.
export function inWords(setting, value) {
  if (setting.zero && Number(value) === 0) return setting.zero;
  if (setting.kind === "duration") return fmt.duration(Number(value));
  if (setting.kind === "bytes") return fmt.bytes(value);
  if (setting.kind === "count") return fmt.count(value);
  return value === "" ? "–" : String(value);
}

// What was written, as the broker takes it: values that are empty are left out.
export function readSettings(texts, settings = SETTINGS) {
  const found = {};
  const errors = {};
  for (const setting of settings) {
    const text = texts[setting.key] ?? "";
    if (text === "" || !setting.when(texts)) continue;
    try {
      found[setting.key] = KINDS[setting.kind].read(text);
    } catch (fault) {
      errors[setting.key] = fault.message;
    }
  }
  return { found, errors, wrong: Object.keys(errors).length > 0 };
}

function SettingField({ setting, text, error, onText, defaults }) {
  const standard = defaults?.[setting.key];
  if (setting.kind === "choice") {
    const empty = defaults === null ? [] : [["", standard === undefined ? "Default of the broker" : `Default: ${standard}`]];
    return html`<${Field} label=${setting.label} hint=${setting.hint}>
      <select value=${text} onChange=${(event) => onText(event.target.value)}>
        ${[...empty, ...setting.options].map(([id, name]) => html`<option key=${id} value=${id} selected=${id === text}>${name}</option>`)}
      </select>
    <//>`;
  }
  const placeholder = defaults === null ? "" : standard === undefined || standard === "" ? "Default" : `Default: ${asText(setting, standard)}`;
  return html`<${Field} label=${setting.label} hint=${setting.hint} error=${error}>
    <input value=${text} placeholder=${placeholder} autocomplete="off" spellcheck=${false} aria-invalid=${error ? "true" : undefined} onInput=${(event) => onText(event.target.value)} />
  <//>`;
}

// All fields; `defaults` null: there are none, each value is the topic's own.
export function SettingFields({ settings, texts, setTexts, defaults, admin }) {
  const { errors } = readSettings(texts, settings);
  const field = (setting) => html`<${SettingField}
    key=${setting.key}
    setting=${setting}
    text=${texts[setting.key] ?? ""}
    error=${errors[setting.key]}
    defaults=${defaults}
    onText=${(text) => setTexts({ ...texts, [setting.key]: text })}
  />`;
  const shown = settings.filter((one) => one.when(texts) && (admin || !one.admin));
  const more = shown.filter((one) => one.more);
  return html`<div class="fields topic-fields">${shown.filter((one) => !one.more).map(field)}</div>
    ${more.length > 0 &&
    html`<details open=${more.some((one) => errors[one.key]) || undefined}>
      <summary>More settings</summary>
      <div class="fields topic-fields more-fields">${more.map(field)}</div>
    </details>`}`;
}

