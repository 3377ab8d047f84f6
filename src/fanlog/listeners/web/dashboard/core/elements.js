// The small parts that pages are made of.

import { html, useEffect, useRef, useState } from "/dashboard/vendor/htm-preact.js";
import { asDate, fmt } from "/dashboard/core/format.js";
import { href } from "/dashboard/core/router.js";

let ids = 0;
export function useId(prefix = "id") {
  const ref = useRef("");
  if (!ref.current) ref.current = `${prefix}-${++ids}`;
  return ref.current;
}

const join = (...names) => names.filter(Boolean).join(" ");

// Icons: 16 × 16, strokes in the colour of the text.
const SHAPES = {
  overview: "M2 9.5 8 3l6 6.5M4 8v5h8V8",
  topics: "M2 4h12M2 8h12M2 12h8",
  explorer: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7 14 14",
  groups: "M5.5 7a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM11 7.5a1.6 1.6 0 1 0 0-3.2M2 13c0-2.2 1.6-3.6 3.5-3.6S9 10.8 9 13M10.5 9.6c2 0 3.5 1.2 3.5 3.2",
  queues: "M2 3h12v3H2zM2 8h12v2H2zM2 12h12v1.5H2z",
  dead: "M8 2a5 5 0 0 0-3 9v2.5h6V11a5 5 0 0 0-3-9zM6 7.5h.01M10 7.5h.01",
  transactions: "M3 5h9l-2.5-2.5M13 11H4l2.5 2.5",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.5V8l2.5 1.5",
  pipelines: "M2 4h4v4H2zM10 8h4v4h-4zM6 6h3v4h1",
  clients: "M3 3h10v7H3zM6 13h4M8 10v3",
  rooms: "M2.5 13V3h11v10zM6 13V8h4v5",
  metrics: "M2 13V3M2 13h12M4.5 10l3-3.5 2.5 2L14 4",
  security: "M8 2 3 4v4c0 3 2.2 5 5 6 2.8-1 5-3 5-6V4z",
  audit: "M4 2h6l2.5 2.5V14H4zM6 7h4.5M6 10h4.5",
  settings: "M3 4h10M3 8h10M3 12h10M6 2.8v2.4M10 6.8v2.4M5 10.8v2.4",
  cluster: "M8 6a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM3.5 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6zM12.5 14a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6zM7 6l-2.5 4.5M9 6l2.5 4.5",
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  plus: "M8 3v10M3 8h10",
  up: "M8 12V4M4.5 7.5 8 4l3.5 3.5",
  down: "M8 4v8M4.5 8.5 8 12l3.5-3.5",
  right: "M6 3.5 10.5 8 6 12.5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M5 3l8 5-8 5z",
  warn: "M8 2 1.5 13.5h13zM8 6.5v3M8 11.7h.01",
  ok: "M3 8.5 6.5 12 13 4.5",
  bad: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.5M8 11h.01",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.5V11M8 5h.01",
  theme: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 2v12",
  user: "M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8zM3 14c0-2.6 2-4.2 5-4.2s5 1.6 5 4.2",
  link: "M6.5 9.5l3-3M7 4.5 8.5 3a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5 7.5 13a2.8 2.8 0 0 1-4-4L5 7.5",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d=${SHAPES[name] ?? SHAPES.info} />
  </svg>`;
}

export function Link({ to, params, children, class: cls, ...rest }) {
  return html`<a href=${href(to, params)} class=${cls} ...${rest}>${children}</a>`;
}

export function Button({ kind = "", icon, busy, disabled, href: to, children, type = "button", class: cls, ...rest }) {
  const name = join("button", kind, busy && "busy", cls);
  const inside = html`${icon && html`<${Icon} name=${icon} />`}${children && html`<span>${children}</span>`}`;
  if (to) return html`<a class=${name} href=${to} ...${rest}>${inside}</a>`;
  return html`<button type=${type} class=${name} disabled=${disabled || busy} aria-busy=${busy ? "true" : undefined} ...${rest}>
    ${inside}
  </button>`;
}

const BADGE_ICONS = { ok: "ok", warn: "warn", bad: "bad" };
export function Badge({ kind = "quiet", icon, children, title }) {
  const shape = icon ?? BADGE_ICONS[kind];
  return html`<span class="badge ${kind}" title=${title}>${shape && html`<${Icon} name=${shape} />`}${children}</span>`;
}

// A label around one input, select or textarea.
export function Field({ label, hint, error, children, class: cls }) {
  return html`<label class=${join("field", error && "wrong", cls)}>
    <span class="label">${label}</span>
    ${children}
    ${hint && html`<span class="hint">${hint}</span>`}
    ${error && html`<span class="error" role="alert">${error}</span>`}
  </label>`;
}

export function Select({ label, value, options, onChange, hideLabel, ...rest }) {
  return html`<label class=${join("select", hideLabel && "bare")}>
    <span class=${hideLabel ? "unseen" : "label"}>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)} ...${rest}>
      ${options.map(([id, text]) => html`<option key=${id} value=${id} selected=${String(id) === String(value)}>${text}</option>`)}
    </select>
  </label>`;
}

export function Toggle({ label, checked, onChange, hint, disabled }) {
  return html`<label class="toggle">
    <input type="checkbox" checked=${checked} disabled=${disabled} onChange=${(event) => onChange(event.target.checked)} />
    <span>${label}</span>
    ${hint && html`<span class="hint">${hint}</span>`}
  </label>`;
}

// Waits until somebody has stopped typing. `/` goes to the first one of a page.
export function Search({ value = "", onInput, placeholder = "Search", label = placeholder, delayMs = 250 }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const given = useRef(value);
  useEffect(() => {
    if (value !== given.current) {
      given.current = value;
      setText(value);
    }
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const say = (now) => {
    clearTimeout(timer.current);
    given.current = now;
    onInput(now);
  };
  return html`<label class="search">
    <span class="unseen">${label}</span>
    <${Icon} name="explorer" />
    <input
      type="search"
      value=${text}
      placeholder=${placeholder}
      autocomplete="off"
      spellcheck=${false}
      data-search
      onInput=${(event) => {
        const now = event.target.value;
        setText(now);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => say(now), delayMs);
      }}
      onKeyDown=${(event) => {
        if (event.key === "Enter") say(event.target.value);
        if (event.key === "Escape") {
          if (event.target.value) {
            setText("");
            say("");
            event.preventDefault();
          } else event.target.blur();
        }
      }}
    />
  </label>`;
}

export function Tabs({ tabs, value, onChange, label = "Views" }) {
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex(([id]) => id === value);
    const next = tabs[(at + step + tabs.length) % tabs.length][0];
    onChange(next);
    requestAnimationFrame(() => list.current?.querySelector("[aria-selected=true]")?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
    ${tabs.map(
      ([id, text, count]) => html`<button
        key=${id}
        type="button"
        role="tab"
        aria-selected=${id === value ? "true" : "false"}
        tabindex=${id === value ? 0 : -1}
        onClick=${() => onChange(id)}
      >
        ${text}${count !== undefined && html` <span class="count">${typeof count === "number" ? fmt.count(count) : count}</span>`}
      </button>`,
    )}
  </div>`;
}

export function Card({ title, actions, children, class: cls }) {
  return html`<section class=${join("card", cls)}>
    ${(title || actions) && html`<header><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>`}
    ${children}
  </section>`;
}

export function Stats({ children }) {
  return html`<div class="stats">${children}</div>`;
}

export function Stat({ label, value, hint, kind, href: to, children }) {
  const inside = html`<span class="label">${label}</span><strong>${value}</strong>
    ${hint && html`<span class="hint">${hint}</span>`}${children}`;
  return to ? html`<a class=${join("stat", kind)} href=${to}>${inside}</a>` : html`<div class=${join("stat", kind)}>${inside}</div>`;
}

export function Meter({ value, max, kind = "", label }) {
  const share = max > 0 ? Math.min(1, Math.max(0, Number(value) / Number(max))) : 0;
  return html`<span class="meter ${kind}" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share * 100)}>
    <span style=${{ width: `${share * 100}%` }}></span>
  </span>`;
}

export function Progress({ done, total, label }) {
  const share = total > 0 ? Math.min(1, Number(done) / Number(total)) : 0;
  return html`<div class="progress">
    <progress max="1" value=${share} aria-label=${label}></progress>
    <span>${label}: ${fmt.count(done)} of ${fmt.count(total)}</span>
  </div>`;
}

export function Empty({ title, actions, children }) {
  return html`<div class="empty">
    ${title && html`<h2>${title}</h2>`}
    <div>${children}</div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;
}

// What went wrong, in the broker's words.
export function Problem({ error, onRetry }) {
  if (!error) return null;
  const text = error.detail || error.message || String(error);
  return html`<div class="problem" role="alert">
    <${Icon} name="bad" />
    <div>
      <p>${text}</p>
      ${error.code && html`<p class="hint">${error.status ? `Status ${error.status}, ` : ""}code ${error.code}</p>`}
    </div>
    ${onRetry && html`<${Button} onClick=${onRetry}>Try again<//>`}
  </div>`;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS there is no clipboard for pages of other hosts: the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function Copy({ text, label = "Copy", small = true }) {
  const [done, setDone] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    setDone((await copyText(typeof text === "function" ? text() : text)) ? "Copied" : "Not copied: select it and copy");
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(""), 2000);
  };
  return html`<button type="button" class=${join("button quiet copy", small && "small")} onClick=${copy} title=${label} aria-label=${label}>
    <${Icon} name=${done === "Copied" ? "ok" : "copy"} /><span aria-live="polite">${done || (small ? "" : label)}</span>
  </button>`;
}

export function Code({ children, label = "Copy" }) {
  const text = [children].flat(Infinity).join("");
  return html`<div class="code"><pre tabindex="0"><code>${text}</code></pre><${Copy} text=${text} label=${label} /></div>`;
}

// How long ago, with the time itself as a hint. It grows older by itself.
export function Ago({ time }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const date = asDate(time);
  if (date === null) return html`<span class="faint">–</span>`;
  return html`<time datetime=${date.toISOString()} title=${fmt.time(date)}>${fmt.ago(date)}</time>`;
}

export function Definition({ items }) {
  return html`<dl class="definition">
    ${items.filter(Boolean).map(([label, value]) => html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

// The styles of one page, loaded with it.
export function useStyles(name) {
  useEffect(() => {
    const address = `/dashboard/pages/${name}.css`;
    if (document.querySelector(`link[href="${address}"]`)) return;
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = address;
    document.head.append(link);
  }, [name]);
}
