// Which charts the metrics page has, and the dialog that adds one of the visitor's own.

import { Button, Dialog, Field, html, Search, useState } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";

// A chart is a title and the series in it.
export const SECTIONS = [
  {
    title: "Traffic",
    charts: [
      { title: "Messages", names: ["published_messages", "delivered_messages"], labels: ["Published", "Delivered"] },
      { title: "Bytes", names: ["published_bytes", "delivered_bytes", "fetched_bytes"], labels: ["Published", "Delivered", "Fetched"] },
      { title: "Jobs of queues", names: ["delivered_jobs", "redelivered_jobs"], labels: ["Delivered", "Delivered again"] },
      { title: "Clients", names: ["connections", "subscriptions"], labels: ["Connections", "Subscriptions"] },
    ],
  },
  {
    title: "Falling behind",
    charts: [
      { title: "Lag", names: ["group_lag", "queue_lag"], labels: ["Groups", "Queues"] },
      { title: "New dead letters", names: ["dead_letters"], labels: ["Dead letters"] },
      { title: "Missed messages", names: ["missed_messages"], labels: ["Missed"] },
      { title: "Readers behind", names: ["readers_behind", "slow_readers"], labels: ["Behind now", "Fell behind, per second"] },
    ],
  },
  {
    title: "Latency",
    charts: [
      { title: "Event loop delay", names: ["loop_delay_p50", "loop_delay_p99"], labels: ["Half of the time", "99 %"] },
      { title: "Turn and disk sync", names: ["turn_p99", "sync_p99"], labels: ["Turn, 99 %", "Disk sync, 99 %"] },
    ],
  },
  {
    title: "Machine",
    charts: [
      { title: "CPU", names: ["cpu"], labels: ["CPU of one core"] },
      { title: "Memory", names: ["resident_bytes", "tail_bytes"], labels: ["Process", "Newest messages"] },
      { title: "Free disk space", names: ["disk_free_bytes"], labels: ["Free"] },
      { title: "Waiting for the disk", names: ["pending_bytes"], labels: ["Waiting"] },
      { title: "Open files", names: ["open_files", "threads"], labels: ["Files and sockets", "Threads"] },
    ],
  },
  {
    title: "Access",
    charts: [
      { title: "Refused", names: ["denied", "limited", "auth_failures"], labels: ["Without permission", "Above a limit", "Failed logins"] },
      { title: "New connections", names: ["accepted_connections", "refused_connections"], labels: ["Accepted", "Refused"] },
    ],
  },
  {
    title: "What there is",
    charts: [
      { title: "Topics", names: ["topics", "partitions"], labels: ["Topics", "Partitions"] },
      { title: "Groups and queues", names: ["groups", "queues"], labels: ["Groups", "Queues"] },
      { title: "Rebalances", names: ["rebalances"], labels: ["Rebalances"] },
      { title: "Delayed messages", names: ["delayed_messages"], labels: ["Not due yet"] },
    ],
  },
];

export const SERIES_IN_CHART_MAX = 8;
export const OWN_SERIES_MAX = 48;

// What can be compared: of what, and which value.
const SUBJECTS = [
  ["topic.messages", "Messages of topics"],
  ["topic.bytes", "Bytes of topics"],
  ["topic.readers", "Readers of topics"],
  ["topic.stored_bytes", "Stored bytes of topics"],
  ["group.lag", "Lag of groups"],
  ["group.members", "Members of groups"],
  ["queue.lag", "Lag of queues"],
  ["queue.in_flight", "Jobs in flight of queues"],
  ["queue.dead_letters", "New dead letters of queues"],
  ["broker", "The whole broker"],
];
const FOUND_MAX = 50;

// Charts of one's own are in the address, so that they can be shared.
export function readCharts(text) {
  try {
    const found = JSON.parse(text || "[]");
    return found.filter((one) => Array.isArray(one) && one.every((name) => typeof name === "string")).slice(0, 20);
  } catch {
    return [];
  }
}

const titleOf = (subject) => SUBJECTS.find(([id]) => id === subject)?.[1] ?? "Series";

// The title of a chart of one's own: what its series have in common.
export function ownTitle(names) {
  const [owner, ...rest] = names[0].split(".");
  const field = rest[rest.length - 1];
  const subject = rest.length ? `${owner}.${field}` : "broker";
  return names.length === 1 && rest.length ? `${titleOf(subject)}: ${rest.slice(0, -1).join(".")}` : titleOf(subject);
}

// How a series is called among others of its kind: by the name of its topic, group or queue.
export const ownLabel = (name, label) => (name.includes(".") ? name.split(".").slice(1, -1).join(".") : label);

export function AddChart({ close, onAdd }) {
  const [subject, setSubject] = useState("topic.messages");
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState([]);
  const [of, field] = subject.split(".");
  const params = { of, search: field ? `${search} .${field}` : search, limit: FOUND_MAX };
  const { data, error } = usePoll("/v1/metrics/series", params);
  const found = (data?.series ?? []).filter((one) => one.of === of && (!field || one.field === field));
  const full = chosen.length >= SERIES_IN_CHART_MAX;
  const pick = (name, on) => setChosen(on ? [...chosen, name] : chosen.filter((one) => one !== name));
  const change = (next) => {
    setSubject(next);
    setChosen([]);
  };

  return html`<${Dialog} title="Add a chart" close=${close} submit="Add" disabled=${!chosen.length} onSubmit=${() => onAdd(chosen)}>
    <p class="soft">Choose up to ${SERIES_IN_CHART_MAX} to compare in one chart.</p>
    <${Field} label="What to show">
      <select value=${subject} onChange=${(event) => change(event.target.value)}>
        ${SUBJECTS.map(([id, text]) => html`<option key=${id} value=${id} selected=${id === subject}>${text}</option>`)}
      </select>
    <//>
    <${Search} value=${search} onInput=${setSearch} placeholder="Search by name" />
    <div class="metric-choices" role="group" aria-label="Series">
      ${found.map(
        (one) => html`<label key=${one.name} class="toggle">
          <input
            type="checkbox"
            checked=${chosen.includes(one.name)}
            disabled=${full && !chosen.includes(one.name)}
            onChange=${(event) => pick(one.name, event.target.checked)}
          />
          <span>${one.owner || one.label}</span>
        </label>`,
      )}
      ${data && !found.length && html`<p class="soft">Nothing found. The broker keeps series of the topics, groups and queues that matter most, and of those that somebody looks at.</p>`}
      ${error && html`<p class="error" role="alert">${error.message}</p>`}
    </div>
    <p class="hint">
      ${chosen.length ? `${chosen.length} chosen. ` : ""}${data?.total > FOUND_MAX ? `${fmt.count(data.total)} found; search to see others.` : ""}
    </p>
    ${chosen.length > 0 &&
    html`<div class="row">
      ${chosen.map((name) => html`<${Button} key=${name} kind="small" icon="close" title="Remove" onClick=${() => pick(name, false)}>${ownLabel(name, name)}<//>`)}
    </div>`}
  <//>`;
}

