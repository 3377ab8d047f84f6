// The dead letters of one topic: why jobs died, in groups; then each of them, to read, edit, replay,
// delete and export.

import { Ago, Badge, Button, Card, Field, html, Link, Meter, Page, Pager, Problem, Progress, Search, Select, Table, useEffect, useState, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { route, setParams, useParam } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";
import { useMay } from "/dashboard/core/session.js";
import { useCommand } from "/dashboard/core/palette.js";
import { remove, removeMany, replay } from "/dashboard/pages/dead_actions.js";
import { Letter } from "/dashboard/pages/dead_letter.js";
import { TaskList } from "/dashboard/pages/dead_tasks.js";

const LIST_MS = 5000;
const LIMIT = 50;
const REASONS_SHOWN = 8;
const FILTERS = ["group", "text", "key", "origin", "queue", "since", "until"];

// What the filters in the address choose, as the broker takes it.
function useFilters() {
  const found = {};
  for (const name of FILTERS) [found[name]] = useParam(name);
  const where = Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  for (const name of ["since", "until"]) {
    const time = where[name] && new Date(where[name]);
    if (time && !Number.isNaN(time.getTime())) where[name] = time.toISOString();
    else delete where[name];
  }
  return { given: found, where, active: Object.keys(where).length > 0 };
}

const change = (changes) => setParams({ offset: undefined, ...changes });
const clear = () => change(Object.fromEntries(FILTERS.map((name) => [name, undefined])));

export default function DeadTopicPage({ parts }) {
  useStyles("dead");
  const topic = parts[0];
  const filters = useFilters();
  const may = useMay("manage", topic);
  const [letter, setLetter] = useParam("letter");
  const [order] = useParam("order", "newest");
  const [at] = useParam("offset", "0");
  const offset = Math.max(0, Number(at) || 0);
  const base = api.path`/v1/dead-letters/${topic}`;
  const reasons = usePoll(`${base}/reasons`, {}, LIST_MS);
  const list = usePoll(`${base}/browse`, { ...filters.where, order, offset, limit: LIMIT }, LIST_MS);
  const reload = () => {
    reasons.reload();
    list.reload();
  };
  const total = reasons.data?.total;
  const everything = { topic, chosen: { all: true }, count: reasons.data?.complete ? total : undefined, what: `all of ${topic}`, done: reload };
  useCommand("Replay all dead letters of this topic", () => may && total && replay(everything));
  const query = new URLSearchParams(filters.where).toString();
  const actions = html`
    ${may && html`<${Button} kind="primary" disabled=${!total} onClick=${() => replay(everything)}>Replay all<//>`}
    <${Button} href=${`${base}/export${query && `?${query}`}`} download=${`${topic}.ndjson`} title="One line of JSON for each dead letter">
      ${filters.active ? "Export what fits" : "Export all"}
    <//>
    ${may && html`<${Button} kind="danger" disabled=${!total} onClick=${() => removeMany(everything)}>Purge<//>`}
  `;
  return html`<${Page} title=${topic} actions=${actions} subtitle=${html`<${Subtitle} topic=${topic} data=${reasons.data} />`}>
    <${Problem} error=${reasons.error ?? list.error} onRetry=${reload} />
    <${TaskList} about=${topic} onEnded=${reload} />
    <${Reading} data=${list.data?.complete === false ? list.data : reasons.data} />
    <${Reasons} ...${{ topic, data: reasons.data, group: filters.given.group, may, reload }} />
    <${Filters} ...${{ filters, order, origins: reasons.data?.origins ?? [] }} />
    <${List} ...${{ topic, list, filters, offset, may, reload, open: (row) => setLetter(row.id) }} />
    ${letter && html`<${Letter} key=${letter} topic=${topic} id=${letter} close=${() => setLetter("")} done=${reload} />`}
  <//>`;
}

function Subtitle({ topic, data }) {
  const names = [...new Set((data?.origins ?? []).map((one) => one.topic).filter(Boolean))].slice(0, 5);
  const links = names.map((name, i) => html`${i ? ", " : ""}<${Link} to=${route`/topics/${name}`}>${name}<//>`);
  return html`Jobs${names.length > 0 && html`${" "}from ${links}`}${" "}that failed for good. Read why, fix the cause, then replay: each job goes back
    into its topic.${" "}<${Link} to=${route`/topics/${topic}`}>Settings and size of this topic<//>`;
}

function Reading({ data }) {
  if (!data || data.complete) return null;
  return html`<div role="status"><${Progress} done=${data.looked_at} total=${data.records} label="The broker is reading the dead letters" /></div>`;
}

// Why jobs died

function Reasons({ topic, data, group, may, reload }) {
  const [all, showAll] = useState(false);
  if (data && data.total === 0) return null;
  const rows = all ? data?.reasons : data?.reasons.slice(0, REASONS_SHOWN);
  const about = (row) => ({ topic, chosen: { where: { group: row.group } }, count: data.complete ? row.count : undefined, what: `all with “${row.group}”`, done: reload });
  const columns = [
    { key: "count", label: "Jobs", align: "right", cell: (row) => html`<strong>${fmt.count(row.count)}</strong>` },
    { key: "share", label: "Share", hideOnPhone: true, cell: (row) => html`<${Meter} value=${row.count} max=${data.total} kind="bad" label=${`${fmt.percent(row.count / data.total)} of all`} />` },
    { key: "group", label: "Reason", class: "dead-reason", cell: (row) => html`<${Title} row=${row} active=${row.group === group} />` },
    { key: "last", label: "Last", hideOnPhone: true, class: "nowrap", cell: (row) => html`<${Ago} time=${row.last} />` },
    { key: "first", label: "First", hideOnPhone: true, class: "nowrap", cell: (row) => html`<${Ago} time=${row.first} />` },
    ...(may
      ? [
          {
            key: "actions",
            label: "Actions",
            cell: (row) => html`<div class="row">
              <${Button} kind="small" onClick=${() => replay(about(row))} aria-label=${`Replay all with ${row.group}`}>Replay<//>
              <${Button} kind="small danger" onClick=${() => removeMany(about(row))} aria-label=${`Delete all with ${row.group}`}>Delete<//>
            </div>`,
          },
        ]
      : []),
  ];
  const more = (data?.reasons.length ?? 0) > REASONS_SHOWN;
  return html`<${Card}
    title="Why jobs died"
    actions=${more && html`<${Button} kind="quiet small" onClick=${() => showAll(!all)}>${all ? "Show fewer" : `Show all ${fmt.count(data.groups)}`}<//>`}
  >
    <${Table} caption="Reasons" columns=${columns} rows=${rows} id=${(row) => row.group} onOpen=${(row) => change({ group: row.group === group ? undefined : row.group })} />
  <//>`;
}

// A reason, with the class of its error in front; it chooses what the list shows.
function Title({ row, active }) {
  const rest = row.error ? row.group.slice(row.error.length) : row.group;
  return html`<button type="button" class="dead-title" aria-pressed=${active ? "true" : "false"} title=${active ? "Show all" : "Show only these"} onClick=${() => change({ group: active ? undefined : row.group })}>
      <span class="dead-wrap">${row.error && html`<strong class="bad-text">${row.error}</strong>`}${rest}</span>
    </button>
    ${active && html` <${Badge} kind="info">shown below<//>`}`;
}

// Filters

function Filters({ filters, order, origins }) {
  const { given } = filters;
  const topics = [...new Set(origins.map((one) => one.topic).filter(Boolean))];
  const queues = [...new Set(origins.map((one) => one.queue).filter(Boolean))];
  const options = (names, all) => [["", all], ...names.map((name) => [name, name])];
  const more = Boolean(given.origin || given.queue || given.since || given.until);
  const has = (names, value) => (value && !names.includes(value) ? [...names, value] : names);
  return html`<div class="dead-filters" role="search" aria-label="Filter dead letters">
    <${Search} value=${given.text} onInput=${(text) => change({ text: text || undefined })} placeholder="Text in reason, key, headers or value" label="Search dead letters" />
    <${Typed} label="Key" value=${given.key} onChange=${(key) => change({ key: key || undefined })} />
    <${Select} label="Order" value=${order} options=${[["newest", "Newest first"], ["oldest", "Oldest first"]]} onChange=${(value) => change({ order: value === "newest" ? undefined : value })} />
    ${filters.active && html`<${Button} onClick=${clear}>Clear filters<//>`}
  </div>
  <details class="dead-more" open=${more}>
    <summary>More filters: where the job came from, queue, time</summary>
    <div class="dead-filters">
      <${Select} label="Job came from" value=${given.origin} options=${options(has(topics, given.origin), "Any topic")} onChange=${(origin) => change({ origin: origin || undefined })} />
      <${Select} label="Queue" value=${given.queue} options=${options(has(queues, given.queue), "Any queue")} onChange=${(queue) => change({ queue: queue || undefined })} />
      <${Typed} label="Died since" type="datetime-local" value=${given.since} onChange=${(since) => change({ since: since || undefined })} />
      <${Typed} label="Died before" type="datetime-local" value=${given.until} onChange=${(until) => change({ until: until || undefined })} />
    </div>
  </details>
  ${given.group && html`<p class="notice">Only jobs that died with: <strong>${given.group}</strong> <${Button} kind="quiet small" onClick=${() => change({ group: undefined })}>Show all<//></p>`}`;
}

// A field whose value counts when it is left, or with Enter.
function Typed({ label, value, onChange, type = "text" }) {
  const [text, setText] = useState(value ?? "");
  useEffect(() => setText(value ?? ""), [value]);
  const say = () => text !== (value ?? "") && onChange(text);
  return html`<${Field} label=${label}>
    <input type=${type} value=${text} autocomplete="off" spellcheck=${false} onInput=${(event) => setText(event.target.value)} onBlur=${say} onKeyDown=${(event) => event.key === "Enter" && say()} />
  <//>`;
}

// The list

const COLUMNS = [
  { key: "died", label: "Died", class: "nowrap", cell: (row) => html`<${Ago} time=${row.died} />` },
  { key: "reason", label: "Reason", class: "dead-reason", cell: (row) => html`<${Link} to=${location.hash.slice(1).split("?")[0]} params=${{ ...paramsOf(), letter: row.id }}>${short(row.reason) || "(no reason given)"}<//>` },
  { key: "key", label: "Key", cell: (row) => (row.key === null ? html`<span class="faint">none</span>` : html`<code class="dead-key" title=${row.key}>${row.key}</code>`) },
  { key: "deliveries", label: "Attempts", align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.deliveries) },
  { key: "queue", label: "Queue", hideOnPhone: true, cell: (row) => row.queue },
  { key: "origin", label: "Job came from", hideOnPhone: true, cell: (row) => html`<span class="dead-wrap">${row.topic}</span> <span class="faint nowrap">${row.partition}:${fmt.count(row.offset)}</span>` },
  { key: "preview", label: "Value", hideOnPhone: true, cell: (row) => html`<div class="dead-value">${row.value_bytes === null ? "no value" : row.preview}</div>` },
];

const paramsOf = () => Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""));
const short = (text) => (text.length > 200 ? `${text.slice(0, 199)}…` : text);

function List({ topic, list, filters, offset, may, reload, open }) {
  const [selected, select] = useState(() => new Set());
  const { data, loading } = list;
  // What is chosen belongs to this topic.
  useEffect(() => select(new Set()), [topic]);
  const ids = [...selected];
  const done = () => {
    select(new Set());
    reload();
  };
  const some = { topic, chosen: { ids }, count: ids.length, what: fmt.plural(ids.length, "selected dead letter"), done };
  const fitting = { topic, chosen: { where: filters.where }, count: data?.total ?? 0, what: "all that fit the filters", done };
  return html`${may &&
    ids.length > 0 &&
    html`<div class="dead-selected" role="region" aria-label="Selected">
      <strong>${fmt.count(ids.length)} selected</strong>
      <${Button} kind="primary" onClick=${() => replay(some)}>Replay selected<//>
      <${Button} kind="danger" onClick=${() => remove(some)}>Delete selected<//>
      <${Button} kind="quiet" onClick=${() => select(new Set())}>Select none<//>
    </div>`}
    ${may &&
    filters.active &&
    data?.total > 0 &&
    ids.length === 0 &&
    html`<div class="toolbar">
      <span>${fmt.plural(data.total, "dead letter")} fit.</span>
      <${Button} disabled=${!data.complete} onClick=${() => replay(fitting)}>Replay all that fit<//>
      <${Button} kind="danger" disabled=${!data.complete} onClick=${() => removeMany(fitting)}>Delete all that fit<//>
    </div>`}
    <${Table}
      caption="Dead letters"
      columns=${COLUMNS}
      rows=${data?.letters}
      id=${(row) => row.id}
      onOpen=${open}
      selected=${may ? selected : undefined}
      onSelect=${may ? select : undefined}
      busy=${loading && data !== undefined}
      empty=${data?.complete === false ? "The broker is still looking…" : filters.active ? "No dead letter fits. Change the filters." : "No dead letters: all were replayed or deleted."}
    />
    <${Pager} offset=${offset} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "dead letter" : "dead letters"} onChange=${(next) => setParams({ offset: next || undefined })} />`;
}
