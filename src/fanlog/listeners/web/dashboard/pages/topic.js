// One topic: what it has, who uses it, how much goes through it, and what can be done to it.

import { Ago, Badge, Button, Card, Empty, html, Link, Page, Problem, Select, Stat, Stats, Table, Tabs, useStyles } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { HistoryChart } from "/dashboard/core/chart.js";
import { useKey } from "/dashboard/core/keys.js";
import { useCommand } from "/dashboard/core/palette.js";
import { go, href, route, setParams, useParam } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";
import { fmt } from "/dashboard/core/format.js";
import { openPublish } from "/dashboard/pages/explorer_publish.js";
import { alterTopic, compactTopic, deleteTopic, growTopic, truncateTopic } from "/dashboard/pages/topic_actions.js";
import { Groups, LIMIT, Partitions, Producers, Readers, Segments, Settings } from "/dashboard/pages/topic_tabs.js";

const EVERY_MS = 5000;
const RANGES = [["5m", "5 minutes"], ["15m", "15 minutes"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"]];
const LISTS = { partitions: Partitions, segments: Segments, readers: Readers, groups: Groups, producers: Producers };
// The lists that can be of one partition.
const OF_ONE = ["segments", "producers"];

export default function TopicPage({ parts }) {
  useStyles("topics");
  const name = parts[0];
  const session = useSession();
  const [tab] = useParam("tab", "overview");
  const [offset, setOffset] = useParam("offset", "0");
  const [partition] = useParam("partition");
  const mayManage = useMay("manage", name);
  const mayRead = useMay("subscribe", name);
  const mayPublish = useMay("publish", name);
  const show = tab in LISTS ? tab : undefined;
  const params = { show, offset: show ? Number(offset) || 0 : undefined, limit: show ? LIMIT : undefined, partition: OF_ONE.includes(tab) ? partition : undefined };
  const { data, error, loading, reload } = usePoll(api.path`/v1/topics/${name}/details`, params, EVERY_MS);
  const topic = data?.name === name ? data : undefined;
  const manages = mayManage && topic && !topic.internal;
  const own = { admin: session.admin, auth: session.auth };
  const explorer = href("/explorer", { topic: name });

  useKey("e", "Open the newest messages", () => go("/explorer", { topic: name }));
  useCommand(`Newest messages of ${name}`, () => go("/explorer", { topic: name }), { icon: "explorer" });
  useCommand(`Change settings of ${name}`, () => manages && alterTopic(topic, reload, own));

  if (error?.status === 404 && error.code === "topic_not_found") {
    return html`<${Page} title=${name}>
      <${Empty} title="There is no such topic" actions=${html`<${Button} href=${href("/topics", { search: name })}>Search topics<//>`}>It was deleted, or nobody has published to it yet.<//>
    <//>`;
  }
  const actions = html`
    ${mayRead && html`<${Button} kind="primary" icon="explorer" href=${explorer}>Newest messages<//>`}
    ${mayPublish && !topic?.internal && html`<${Button} onClick=${() => openPublish({ topic: name }, reload)}>Publish<//>`}
    ${topic?.settings.role === "dead-letter" && html`<${Button} href=${href(route`/dead/${name}`)}>Dead letters<//>`}
    ${manages && html`<${Manage} topic=${topic} done=${reload} own=${own} />`}`;
  const list = { data: topic, busy: loading, offset: params.offset, setOffset, partition, setPartition: (value) => setParams({ partition: value || undefined, offset: undefined }) };
  return html`<${Page} class="topics" title=${name} subtitle=${topic && html`<${Subtitle} topic=${topic} />`} actions=${actions}>
    <${Problem} error=${error} onRetry=${reload} />
    ${topic && html`<${Trouble} topic=${topic} />`}
    <${Tabs} label="Views of the topic" value=${tab} tabs=${tabsOf(topic)} onChange=${(id) => setParams({ tab: id === "overview" ? undefined : id, offset: undefined, partition: undefined })} />
    <div class="tab-body" role="tabpanel" aria-label=${tab}>
      ${!topic && !error && html`<p class="hint" role="status">Loading …</p>`}
      ${topic && tab === "overview" && html`<${Overview} topic=${topic} mayRead=${mayRead} />`}
      ${topic && tab === "settings" && html`<${Settings} data=${topic} mayManage=${manages} alter=${() => alterTopic(topic, reload, own)} />`}
      ${topic && show && html`<${LISTS[show]} ...${list} />`}
    </div>
  <//>`;
}

const tabsOf = (topic) => [
  ["overview", "Overview"],
  ["partitions", "Partitions", topic?.partition_count],
  ["segments", "Segments", topic?.segment_count],
  ["readers", "Readers"],
  ["groups", "Groups and queues"],
  ["producers", "Producers"],
  ["settings", "Settings"],
];

function Subtitle({ topic }) {
  const { settings } = topic;
  const kept = Number(settings.retention_seconds) > 0 ? `kept for ${fmt.duration(Number(settings.retention_seconds))}` : "kept for ever";
  return html`${fmt.plural(topic.partition_count, "partition")}, durability ${settings.durability}, ${settings.cleanup === "compact" ? "compacted, " : ""}${kept}
    ${settings.owner && html`, owner ${settings.owner}`} ${topic.internal && html`<${Badge}>the broker's own<//>`}`;
}

function Manage({ topic, done, own }) {
  return html`<${Button} onClick=${() => alterTopic(topic, done, own)}>Change settings<//>
    <${Button} onClick=${() => growTopic(topic, done)}>Add partitions<//>
    ${topic.settings.cleanup === "compact" && html`<${Button} onClick=${() => compactTopic(topic, done)}>Compact<//>`}
    <${Button} onClick=${() => truncateTopic(topic, done)}>Delete messages …<//>
    <${Button} kind="danger" onClick=${() => deleteTopic(topic)}>Delete topic …<//>`;
}

// Damage and failed logs, each with its reason.
function Trouble({ topic }) {
  return html`${topic.failed.length > 0 &&
    html`<div class="notice bad">
      <strong>${fmt.plural(topic.failed.length, "partition")} ${topic.failed.length === 1 ? "takes" : "take"} no more writes.</strong> Look at the disk, then restart the broker.
      <ul>
        ${topic.failed.map((one) => html`<li key=${one.partition}>Partition ${one.partition}: ${one.reason}</li>`)}
      </ul>
    </div>`}
  ${topic.damaged.length > 0 &&
  html`<div class="notice warn">
    <strong>Messages were lost to damage on disk.</strong> Readers get a gap event. The damaged bytes are kept aside; a backup may have the messages.
    <${Table}
      caption="Damage"
      columns=${[
        { key: "partition", label: "Partition", align: "right" },
        { key: "offsets", label: "Offsets", cell: (row) => `${fmt.count(row.first)} – ${fmt.count(Number(row.next) - 1)}` },
        { key: "reason", label: "What is wrong" },
        { key: "file", label: "File", hideOnPhone: true, cell: (row) => html`<span class="file-name">${row.file}</span>` },
      ]}
      rows=${topic.damaged}
      id=${(row) => `${row.partition} ${row.first}`}
    />
  </div>`}`;
}

function Overview({ topic, mayRead }) {
  const [range, setRange] = useParam("range", "1h");
  const { counters } = topic;
  const missed = Number(counters.skipped_records) + Number(counters.lost_records);
  const tabLink = (tab) => href(route`/topics/${topic.name}`, { tab });
  const series = (field) => `topic.${topic.name}.${field}`;
  return html`<${Stats}>
      <${Stat} label="Messages" value=${fmt.count(topic.messages)} hint=${`${fmt.count(topic.published)} ever published`} />
      <${Stat} label="Size" value=${fmt.bytes(topic.bytes)} hint=${fmt.plural(topic.segment_count, "segment")} href=${tabLink("segments")} />
      <${Stat} label="Rate" value=${fmt.rate(topic.messages_per_second)} hint=${fmt.bytesRate(topic.bytes_per_second)} />
      <${Stat} label="Newest message" value=${topic.newest_us ? html`<${Ago} time=${Number(topic.newest_us) / 1e6} />` : "none yet"} href=${mayRead && topic.newest_us ? href("/explorer", { topic: topic.name }) : undefined} />
      <${Stat} label="Readers" value=${fmt.count(topic.reader_count)} hint="in all partitions" href=${tabLink("readers")} />
      <${Stat} label="Largest lag" value=${topic.lag === null ? "–" : fmt.count(topic.lag)} kind=${Number(topic.lag) > 0 ? "warn" : ""} hint=${topic.lag === null ? "no group or queue reads it" : "of a group or queue"} href=${tabLink("groups")} />
      ${missed > 0 && html`<${Stat} label="Missed by readers" value=${fmt.count(missed)} kind="bad" hint="since the broker started" href=${tabLink("readers")} />`}
    <//>
    ${mayRead && html`<${Newest} name=${topic.name} />`}
    <${Card} title="Over time" actions=${html`<${Select} label="Range" hideLabel value=${range} options=${RANGES} onChange=${setRange} />`}>
      <div class="columns body">
        <${HistoryChart} title="Messages published" names=${[series("messages")]} labels=${{ [series("messages")]: "Messages" }} range=${range} format=${fmt.rate} sync="topic" />
        <${HistoryChart} title="Bytes published" names=${[series("bytes")]} labels=${{ [series("bytes")]: "Bytes" }} range=${range} format=${fmt.bytesRate} sync="topic" />
        <${HistoryChart} title="Stored" names=${[series("stored_bytes")]} labels=${{ [series("stored_bytes")]: "Bytes" }} range=${range} format=${fmt.bytes} sync="topic" />
        <${HistoryChart} title="Readers" names=${[series("readers")]} labels=${{ [series("readers")]: "Readers" }} range=${range} format=${fmt.count} sync="topic" />
      </div>
    <//>`;
}

const PREVIEWS = [
  { key: "time", label: "Time", cell: (row) => html`<span class="nowrap"><${Ago} time=${row.time} /></span>` },
  { key: "position", label: "Partition, offset", align: "right", hideOnPhone: true, cell: (row) => html`<${Link} to="/explorer" params=${{ topic: row.topic, partition: row.partition, offset: row.offset }}>${row.partition}, ${fmt.count(row.offset)}<//>` },
  { key: "key", label: "Key", hideOnPhone: true, cell: (row) => (row.key !== undefined && row.key !== null ? html`<code>${row.key}</code>` : html`<span class="faint">${row.key_base64 ? "binary" : "none"}</span>`) },
  { key: "value", label: "Value", cell: (row) => html`<${Value} row=${row} />` },
];

function Value({ row }) {
  if (row.format === "deleted") return html`<${Badge}>deletes its key<//>`;
  if (row.preview_base64) return html`<span class="faint">${fmt.bytes(row.bytes)} of binary data</span>`;
  return html`<span class="preview">${row.preview ?? ""}${row.truncated ? " …" : ""}</span>`;
}

function Newest({ name }) {
  const { data, error } = usePoll("/v1/explore", { topic: name, limit: 5, preview_bytes: 240 }, EVERY_MS);
  return html`<${Card} title="Newest messages" actions=${html`<${Link} to="/explorer" params=${{ topic: name }}>Open in the Explorer<//>`}>
    ${error && !data ? html`<p class="hint">They can't be shown: ${error.message}</p>` : html`<${Table} caption="Newest messages" columns=${PREVIEWS} rows=${data?.messages} id=${(row) => `${row.partition}/${row.offset}`} empty="This topic has no messages now." />`}
  <//>`;
}
