// What is looked at: topics, where to begin, and conditions. All of it is in the address.

import { Button, Field, html, Icon, Search, Select, Toggle, useEffect, useRef, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";

const SUGGEST_MS = 200;
const STEPS = 1000;

// A text that counts when somebody has finished it: with Enter, or by leaving the field.
export function Typed({ label, value, onDone, hint, error, list, hideLabel, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const done = (now) => now !== value && onDone(now.trim());
  const input = html`<input
    value=${text}
    list=${list}
    autocomplete="off"
    spellcheck=${false}
    onInput=${(event) => {
      setText(event.target.value);
      // Chosen from the list of suggestions.
      if (event.inputType === "insertReplacementText" || (list && !event.inputType)) done(event.target.value);
      rest.onText?.(event.target.value);
    }}
    onChange=${(event) => done(event.target.value)}
    onKeyDown=${(event) => event.key === "Enter" && done(event.target.value)}
    ...${{ ...rest, onText: undefined }}
  />`;
  return html`<${Field} label=${hideLabel ? html`<span class="unseen">${label}</span>` : label} hint=${hint} error=${error}>${input}<//>`;
}

export function TopicInput({ value, onDone }) {
  const [found, setFound] = useState([]);
  const timer = useRef(0);
  const suggest = (text) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(async () => {
      const last = text.split(",").at(-1).trim();
      const before = text.slice(0, text.length - text.split(",").at(-1).length);
      try {
        const page = await api.get("/v1/topic-list", { search: last, limit: 15 });
        setFound(page.topics.map((topic) => `${before}${before && " "}${topic.name}`));
      } catch {
        setFound([]);
      }
    }, SUGGEST_MS);
  };
  useEffect(() => {
    suggest("");
    return () => clearTimeout(timer.current);
  }, []);
  return html`<${Typed} label="Topic" value=${value} onDone=${onDone} onText=${suggest} list="explorer-topics" placeholder="orders, or a pattern: orders.>" data-topic />
    <datalist id="explorer-topics">${found.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;
}

// From the oldest message to the newest, with how many came when. Moving it goes to that time.
export function TimeSlider({ range, time, onTime }) {
  const oldest = range?.oldest ? new Date(range.oldest).getTime() : 0;
  const newest = range?.newest ? new Date(range.newest).getTime() : 0;
  const length = Math.max(1, newest - oldest);
  const given = time ? new Date(time).getTime() : newest;
  const at = Math.round(Math.min(1, Math.max(0, (given - oldest) / length)) * STEPS);
  const [moved, setMoved] = useState(null);
  useEffect(() => setMoved(null), [time, range]);
  if (!oldest) return null;
  const most = Math.max(1, ...range.counts.map(Number));
  const step = moved ?? at;
  const meant = new Date(oldest + (step / STEPS) * length);
  const text = step >= STEPS ? "now" : fmt.time(meant, { ms: length < 60_000 });
  return html`<div class="time-slider">
    ${range.counts.length > 0 &&
    html`<div class="time-bars" aria-hidden="true">
      ${range.counts.map((count, i) => html`<span key=${i} title=${fmt.count(count)} style=${{ height: Number(count) ? `${Math.max(6, (Number(count) / most) * 100)}%` : "0" }}></span>`)}
    </div>`}
    <label>
      <span class="unseen">Time</span>
      <input
        type="range"
        min="0"
        max=${STEPS}
        value=${step}
        aria-valuetext=${text}
        onInput=${(event) => setMoved(Number(event.target.value))}
        onChange=${(event) => {
          const to = Number(event.target.value);
          onTime(to >= STEPS ? "" : new Date(oldest + (to / STEPS) * length).toISOString());
        }}
      />
    </label>
    <div class="time-ends"><span>${fmt.time(range.oldest)}</span><strong>${step >= STEPS ? "" : text}</strong><span>${fmt.time(range.newest)}</span></div>
  </div>`;
}

const local = (iso) => {
  const date = iso ? new Date(iso) : null;
  if (!date || Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 23);
};

// Where history begins.
export function Beginning({ params, oldestFirst, onChange }) {
  const [fault, setFault] = useState("");
  const fromOffset = (offset) => {
    const good = !offset || /^\d+$/.test(offset);
    setFault(good ? "" : "Give a whole number.");
    if (good) onChange({ offset: offset || undefined, time: undefined });
  };
  return html`<div class="explorer-row">
    <${Typed} label="From offset" value=${params.offset ?? ""} error=${fault} onText=${() => setFault("")} onDone=${fromOffset} inputmode="numeric" placeholder="any" class="short" />
    <${Field} label="From time" class="from-time">
      <input
        type="datetime-local"
        step="0.001"
        value=${local(params.time)}
        onChange=${(event) => {
          const date = event.target.value ? new Date(event.target.value) : null;
          onChange({ time: date ? date.toISOString() : undefined, offset: undefined });
        }}
      />
    <//>
    <${Select} label="Order" value=${oldestFirst ? "oldest" : "newest"} options=${[["newest", "Newest first"], ["oldest", "Oldest first"]]} onChange=${(order) => onChange({ order })} />
    ${(params.offset || params.time) && html`<${Button} kind="quiet" onClick=${() => onChange({ offset: undefined, time: undefined, order: undefined })}>From the newest<//>`}
  </div>`;
}

const MATCHES = [
  ["contains", "contains"],
  ["exact", "is exactly"],
  ["prefix", "begins with"],
  ["glob", "fits the glob"],
  ["base64", "is the base64"],
];
const CONDITIONS = ["text", "key", "header", "json", "trace"];

export const conditionsOf = (params) => CONDITIONS.filter((name) => params[name]);

export function Conditions({ params, onChange }) {
  const more = ["header", "json", "trace", "case"].filter((name) => params[name]).length;
  const count = conditionsOf(params).length;
  const [open, setOpen] = useState(more > 0);
  return html`<div class="explorer-row">
      <${Search} value=${params.text ?? ""} onInput=${(text) => onChange({ text: text || undefined })} placeholder="Text in the value" label="Text in the value" delayMs=${500} />
      <${Select} hideLabel label="How the key fits" value=${params.match ?? "contains"} options=${MATCHES.map(([id, text]) => [id, `Key ${text}`])} onChange=${(match) => onChange({ match: match === "contains" ? undefined : match })} />
      <${Typed} hideLabel label="Key" value=${params.key ?? ""} onDone=${(key) => onChange({ key: key || undefined })} placeholder="key" class="short" />
      ${count > 0 && html`<${Button} kind="quiet" icon="close" onClick=${() => onChange({ text: undefined, key: undefined, match: undefined, header: undefined, json: undefined, trace: undefined, case: undefined })}>Clear ${fmt.plural(count, "filter")}<//>`}
    </div>
    <details class="more-conditions" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
      <summary>More filters${more > 0 ? ` (${more})` : ""}</summary>
      <div class="fields">
        <${Typed} label="Header" value=${params.header ?? ""} onDone=${(header) => onChange({ header: header || undefined })} placeholder="type=paid" hint="name, name=value, or name~part. Several with & between them." />
        <${Typed} label="In JSON" value=${params.json ?? ""} onDone=${(json) => onChange({ json: json || undefined })} placeholder="order.total > 10" hint="A path and = != > >= < <= ~ (contains), or the path alone. Several with && between them." />
        <${Typed} label="Trace id" value=${params.trace ?? ""} onDone=${(trace) => onChange({ trace: trace || undefined })} placeholder="32 hexadecimal digits" />
        <${Toggle} label="Match case" checked=${params.case === "true"} onChange=${(on) => onChange({ case: on ? "true" : undefined })} />
      </div>
    </details>`;
}

export function ModeSwitch({ live, resting, onMode, onRest }) {
  return html`<div class="mode-switch" role="group" aria-label="What to show">
    <button type="button" aria-pressed=${live ? "true" : "false"} onClick=${() => onMode("live")}><span class="dot ${live && !resting ? "on" : ""}" aria-hidden="true"></span>Live</button>
    <button type="button" aria-pressed=${live ? "false" : "true"} onClick=${() => onMode("history")}>History</button>
    ${live && html`<${Button} icon=${resting ? "play" : "pause"} onClick=${onRest} title="Space or p">${resting ? "Resume" : "Pause"}<//>`}
  </div>`;
}

export const Hint = ({ children }) => html`<p class="hint"><${Icon} name="info" /> ${children}</p>`;
