// All topics: searched, sorted and paged by the broker, however many there are.

import { Ago, Badge, Button, html, Icon, Link, Page, Pager, Problem, Search, Table, Toggle, useStyles } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { useKey } from "/dashboard/core/keys.js";
import { useCommand } from "/dashboard/core/palette.js";
import { go, href, route, setParams, useParam } from "/dashboard/core/router.js";
import { useSession } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";
import { createTopic } from "/dashboard/pages/topic_actions.js";

const LIMIT = 50;
const EVERY_MS = 5000;

const explorer = (name) => href("/explorer", { topic: name });
const pageOf = (row) => (row.role === "dead-letter" ? route`/dead/${row.name}` : route`/topics/${row.name}`);

export function StateBadge({ state }) {
  if (state === "failed") return html`<${Badge} kind="bad" title="A partition takes no more writes">failed<//>`;
  if (state === "damaged") return html`<${Badge} kind="warn" title="Messages were lost to damage on disk">damaged<//>`;
  return null;
}

function Name({ row }) {
  return html`<span class="topic-name">
    <${Link} to=${route`/topics/${row.name}`}>${row.name}<//>
    <${StateBadge} state=${row.state} />
    ${row.role === "dead-letter" && html`<a class="badge info" href=${href(pageOf(row))}>dead letters</a>`}
    ${row.internal && html`<${Badge}>the broker's own<//>`}
    ${row.cleanup === "compact" && html`<${Badge} title="Keeps the last message of each key">compacted<//>`}
    ${row.durability !== "os" && html`<${Badge} title="Durability">${row.durability}<//>`}
  </span>`;
}

function Lag({ row }) {
  if (row.lag === null) return html`<span class="faint" title="No group or queue reads it">–</span>`;
  const figure = html`<span class=${Number(row.lag) > 0 ? "warn-text" : "faint"}>${fmt.short(row.lag)}</span>`;
  if (!row.lag_by || Number(row.lag) === 0) return figure;
  const to = row.lag_kind === "queue" ? route`/queues/${row.lag_by}` : route`/groups/${row.lag_by}`;
  return html`<${Link} to=${to} title=${`${fmt.count(row.lag)} messages behind: the ${row.lag_kind === "queue" ? "queue" : "group"} ${row.lag_by}`}>${figure}<//>`;
}

function Retention({ row }) {
  const parts = [];
  if (Number(row.retention_seconds) > 0) parts.push(fmt.duration(Number(row.retention_seconds)));
  if (Number(row.retention_bytes) > 0) parts.push(`${fmt.bytes(row.retention_bytes)} each`);
  return parts.join(", ") || "for ever";
}

const faintZero = (value, text) => (Number(value) > 0 ? text : html`<span class="faint">${text}</span>`);

const COLUMNS = [
  { key: "name", label: "Name", sort: true, cell: (row) => html`<${Name} row=${row} />` },
  { key: "partitions", label: "Partitions", sort: true, align: "right", hideOnPhone: true, cell: (row) => fmt.count(row.partitions) },
  { key: "messages", label: "Messages", sort: true, align: "right", hideOnPhone: true, cell: (row) => html`<span title=${fmt.count(row.messages)}>${faintZero(row.messages, fmt.short(row.messages))}</span>` },
  { key: "size", label: "Size", sort: true, align: "right", hideOnPhone: true, cell: (row) => faintZero(row.bytes, fmt.bytes(row.bytes)) },
  { key: "rate", label: "Rate", sort: true, align: "right", cell: (row) => faintZero(row.messages_per_second, fmt.rate(row.messages_per_second)) },
  { key: "byte_rate", label: "Byte rate", sort: true, align: "right", hideOnPhone: true, cell: (row) => faintZero(row.bytes_per_second, fmt.bytesRate(row.bytes_per_second)) },
  { key: "readers", label: "Readers", title: "One for each partition that a client follows", sort: true, align: "right", hideOnPhone: true, cell: (row) => faintZero(row.readers, fmt.short(row.readers)) },
  { key: "lag", label: "Lag", title: "Of the group or queue that is furthest behind", sort: true, align: "right", cell: (row) => html`<${Lag} row=${row} />` },
  { key: "missed", label: "Missed", title: "Messages that readers did not get since the broker started", sort: true, align: "right", hideOnPhone: true, cell: (row) => (Number(row.missed) > 0 ? html`<span class="bad-text" title="Messages that readers did not get since the broker started">${fmt.short(row.missed)}</span>` : html`<span class="faint">0</span>`) },
  { key: "retention", label: "Kept for", hideOnPhone: true, cell: (row) => html`<${Retention} row=${row} />` },
  { key: "newest", label: "Newest", align: "right", cell: (row) => html`<${Newest} row=${row} />` },
];

function Newest({ row }) {
  if (Number(row.published) === 0) return html`<span class="faint">none yet</span>`;
  return html`<a class="nowrap" href=${explorer(row.name)} aria-label=${`Newest messages of ${row.name}`}><${Icon} name="explorer" /> <${Ago} time=${Number(row.newest_us) / 1e6} /></a>`;
}

export default function TopicsPage() {
  useStyles("topics");
  const session = useSession();
  const [search] = useParam("search");
  const [sort] = useParam("sort", "name");
  const [order] = useParam("order", "up");
  const [offset, setOffset] = useParam("offset", "0");
  const [internal] = useParam("internal");
  const descending = order === "down";
  const params = { search, sort, descending, offset: Number(offset) || 0, limit: LIMIT, internal: internal === "true" || undefined };
  const { data, error, loading, stale, reload } = usePoll("/v1/topic-list", params, EVERY_MS);
  // The broker refuses a name if this user may manage only other topics.
  const mayCreate = session.admin || !session.auth || !["viewer", "observer"].includes(session.role);
  const create = () => createTopic({ admin: session.admin, auth: session.auth, defaults: data?.defaults });

  useKey("c", "Create a topic", () => mayCreate && create());
  useCommand("Topics with the largest lag", () => setParams({ sort: "lag", order: "down", offset: undefined }));
  useCommand("Largest topics", () => setParams({ sort: "size", order: "down", offset: undefined }));
  useCommand("Busiest topics", () => setParams({ sort: "rate", order: "down", offset: undefined }));

  const actions = mayCreate && html`<${Button} kind="primary" icon="plus" onClick=${create}>Create topic<//>`;
  return html`<${Page} class="topics" title="Topics" subtitle="Named streams of messages. Open one to see its partitions, readers and settings, or look at its newest messages." actions=${actions}>
    <${Problem} error=${error} onRetry=${reload} />
    <div class="toolbar">
      <${Search} value=${search} onInput=${(text) => setParams({ search: text || undefined, offset: undefined })} placeholder="Name, or a pattern: orders.>" label="Search topics" />
      <${Toggle} label="Show the broker's own topics" checked=${internal === "true"} onChange=${(on) => setParams({ internal: on ? "true" : undefined, offset: undefined })} />
      <span class="spacer"></span>
      ${stale && html`<${Badge} kind="warn">not up to date<//>`}
    </div>
    <${Table}
      caption="Topics"
      columns=${COLUMNS}
      rows=${data?.topics}
      id=${(row) => row.name}
      sort=${sort}
      descending=${descending}
      onSort=${(key, down) => setParams({ sort: key === "name" ? undefined : key, order: down ? "down" : undefined, offset: undefined })}
      onOpen=${(row) => go(route`/topics/${row.name}`)}
      busy=${loading && data !== undefined}
      empty=${search ? "No topic has this in its name." : html`<${NoTopics} create=${mayCreate && create} />`}
    />
    <${Pager} offset=${params.offset} limit=${LIMIT} total=${data?.total} noun=${data?.total === 1 ? "topic" : "topics"} onChange=${setOffset} />
  <//>`;
}

function NoTopics({ create }) {
  return html`<div class="stack no-topics">
    <p>No topics yet. A topic appears when somebody publishes to it, or when you create it.</p>
    ${create && html`<p><${Button} onClick=${create}>Create the first topic<//></p>`}
    <p class="hint">Or from a terminal: <code>fanlog publish orders "hello"</code></p>
  </div>`;
}
