// Messages of one topic or of many: as they come, and as they are kept. The broker looks, within
// limits; the page shows at most 500 rows. What it shows is in the address, so that it can be shared.

import { Badge, Button, Empty, html, Icon, Link, Page, Problem, Table, useEffect, useMemo, useState, useStyles } from "/dashboard/core/ui.js";
import { usePoll } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { useKey } from "/dashboard/core/keys.js";
import { useCommand } from "/dashboard/core/palette.js";
import { route, setParams, useRoute } from "/dashboard/core/router.js";
import { useMay, useSession } from "/dashboard/core/session.js";
import { openComparison } from "/dashboard/pages/explorer_compare.js";
import { Beginning, Conditions, conditionsOf, ModeSwitch, TimeSlider, TopicInput, Typed } from "/dashboard/pages/explorer_controls.js";
import { MessagePanel } from "/dashboard/pages/explorer_detail.js";
import { idOf, ROWS_MAX, useFeed } from "/dashboard/pages/explorer_feed.js";
import { openPublish } from "/dashboard/pages/explorer_publish.js";

const BUCKETS = 60;
const INTERACTIVE = "a, button, input, select, textarea, summary, tr, pre, dialog, [role=tab]";

const listed = (text, sign) => (text ?? "").split(sign).map((one) => one.trim()).filter(Boolean);
// Without a topic only those who may publish anywhere are offered to.
function useMayPublish(topic) {
  const session = useSession();
  const allowed = useMay("publish", topic || "any");
  return topic ? allowed : !session.auth || session.admin;
}

const hasWildcard = (name) => /[*>]/.test(name);

// What the broker is asked, by the address.
function queryOf(params) {
  return {
    topic: listed(params.topic, ","),
    partition: listed(params.partition, ",").filter((one) => /^\d+$/.test(one)),
    text: params.text,
    key: params.key,
    key_match: params.key ? params.match : undefined,
    header: listed(params.header, "&"),
    json: listed(params.json, "&&"),
    trace: params.trace,
    case: params.case === "true" ? "true" : undefined,
  };
}

const Preview = ({ row }) => {
  if (row.format === "deleted") return html`<${Badge}>deleted<//>`;
  if (row.preview_base64 !== undefined) return html`<${Badge}>binary<//> <code class="faint">${row.preview_base64.slice(0, 60)}</code>`;
  return row.preview ? html`<code>${row.preview.slice(0, 300)}</code>` : html`<span class="faint">empty</span>`;
};

const Key = ({ row }) => {
  if (row.key_base64 !== undefined) return html`<code>${row.key_base64}</code> <${Badge}>base64<//>`;
  return row.key === undefined ? html`<span class="faint">–</span>` : html`<code>${row.key}</code>`;
};

// Of another day the date, too.
function shownTime(time) {
  const text = fmt.time(time, { ms: true });
  return text.slice(0, 10) === fmt.time(new Date()).slice(0, 10) ? text.slice(11) : text.slice(5);
}

function columnsOf(several) {
  return [
    { key: "time", label: "Time", class: "nowrap", cell: (row) => html`<time datetime=${row.time} title=${fmt.time(row.time, { ms: true })}>${shownTime(row.time)}</time>` },
    several && { key: "topic", label: "Topic", class: "message-topic", cell: (row) => html`<${Link} to=${route`/topics/${row.topic}`}>${row.topic}<//>` },
    { key: "partition", label: "Partition", align: "right", hideOnPhone: true, class: "when-alone", cell: (row) => String(row.partition) },
    { key: "offset", label: "Offset", align: "right", class: "message-offset", cell: (row) => fmt.count(row.offset) },
    { key: "key", label: "Key", class: "message-key", cell: (row) => html`<${Key} row=${row} />` },
    { key: "value", label: "Value", class: "message-value", cell: (row) => html`<${Preview} row=${row} />` },
    { key: "size", label: "Size", align: "right", hideOnPhone: true, class: "nowrap when-alone", cell: (row) => fmt.bytes(row.bytes ?? 0) },
  ].filter(Boolean);
}

const REASONS = { retention: "were deleted by age or size", damaged: "are damaged on disk", unreadable: "can't be decoded", reset: "are gone: the topic was cut or made again" };

function Gaps({ gaps }) {
  if (!gaps.length) return null;
  return html`<div class="notice warn"><strong>Some messages can't be shown.</strong>
    <ul>${gaps.slice(-5).map((gap, i) => html`<li key=${i}>${gap.topic}, partition ${gap.partition}: offsets ${fmt.count(gap.from)} to ${fmt.count(BigInt(gap.to) - 1n)} ${REASONS[gap.reason] ?? gap.reason}.</li>`)}</ul>
  </div>`;
}

function Status({ feed, live, resting, filtered }) {
  const shown = feed.rows?.length ?? 0;
  const parts = [fmt.plural(shown, "message")];
  if (live && !resting && feed.rate > 0) parts.push(`${fmt.rate(feed.rate)} arriving`);
  if (filtered || feed.scanned > shown) parts.push(`${fmt.count(feed.scanned)} looked at`);
  if (live && feed.skipped > 0) parts.push(html`<strong>${fmt.short(feed.skipped)} skipped</strong>`);
  if (!live && feed.left > 0) parts.push(`${fmt.short(feed.left)} more`);
  if (shown >= ROWS_MAX) parts.push(`only ${ROWS_MAX} are kept here`);
  if (feed.topics > 1) parts.push(fmt.plural(feed.topics, "topic"));
  if (!feed.allTopics) parts.push("more topics fit: the newest are read");
  const state = live ? (resting ? "Paused" : "Live") : feed.looking ? "Looking…" : "";
  return html`<p class="feed-status" role="status" aria-live=${live && !resting ? "off" : "polite"}>
    ${state && html`<${Badge} kind=${live && !resting ? "info" : "quiet"}>${state}<//>`}
    ${parts.map((part, i) => html`<span key=${i}>${part}</span>`)}
    ${live && feed.skipped > 0 && html`<span class="hint">More messages came than a page can show: these are the newest of each second.</span>`}
  </p>`;
}

function NoTopic() {
  const { data } = usePoll("/v1/topic-list", { sort: "rate", descending: true, limit: 12 }, 0);
  return html`<${Empty} title="Which messages?">
    <p>Type a topic above, or a pattern such as <code>orders.*</code> or <code>></code> for all. Or choose one:</p>
    <p class="topic-choices">${(data?.topics ?? []).map((topic) => html`<${Button} key=${topic.name} onClick=${() => setParams({ topic: topic.name })}>${topic.name}<//>`)}</p>
  <//>`;
}

function noRows(feed, live, filtered, begun) {
  if (live) return filtered ? "No message fits yet. New ones appear here." : "No messages yet. New ones appear here.";
  if (feed.next) return "Nothing fits so far.";
  if (begun) return "No messages from there on. Choose an earlier offset or time.";
  return filtered ? "No message fits." : "No messages here.";
}

export default function ExplorerPage() {
  useStyles("explorer");
  const { params } = useRoute();
  const [resting, rest] = useState(false);
  const [open, setOpen] = useState(null);
  const [selected, select] = useState(new Set());
  const topics = listed(params.topic, ",");
  const live = (params.mode ?? (params.offset || params.time ? "history" : "live")) === "live";
  const oldestFirst = (params.order ?? (params.offset || params.time ? "oldest" : "newest")) === "oldest";
  const query = useMemo(() => queryOf(params), [JSON.stringify(params)]);
  const start = { start: params.offset ?? params.time, direction: oldestFirst ? "forward" : "backward" };
  const feed = useFeed({ query, start, live, resting });
  const range = usePoll(topics.length ? "/v1/explore/range" : "", { topic: query.topic, partition: query.partition, buckets: BUCKETS }, 0);
  const several = topics.length > 1 || topics.some(hasWildcard);
  const only = several ? "" : (topics[0] ?? "");
  const mayPublish = useMayPublish(only);
  const filtered = conditionsOf(params).length > 0;

  useEffect(() => {
    setOpen(null);
    select(new Set());
  }, [params.topic]);

  const change = (changes) => setParams(changes);
  const setMode = (mode) => {
    rest(false);
    change(mode === "live" ? { mode: undefined, offset: undefined, time: undefined, order: undefined } : { mode });
    if (mode === "history") range.reload();
  };
  const begin = (changes) => change({ mode: "history", ...changes });
  const pause = () => live && rest((before) => !before);
  const publish = () => openPublish({ topic: only }, () => !live && feed.reload());
  const compare = () => openComparison(feed.rows.filter((row) => selected.has(idOf(row))));

  useKey("p", "Pause or resume (also Space)", pause);
  useKey("l", "Live", () => setMode("live"));
  useKey("h", "History", () => setMode("history"));
  useKey("n", "Publish messages", () => mayPublish && publish());
  useCommand("Publish messages", () => mayPublish && publish());
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
      if (event.key === " " && !event.target.closest?.(INTERACTIVE) && topics.length) {
        event.preventDefault();
        pause();
      }
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  });

  const actions = mayPublish && html`<${Button} kind="primary" icon="plus" onClick=${publish}>Publish<//>`;
  const subtitle = html`Messages live, and from the past. ${only && html`<${Link} to=${route`/topics/${only}`}>Readers and settings of ${only}<//>`}`;
  const around = ({ partition, offset }) => change({ mode: "history", topic: open.topic, partition: String(partition), offset: String(offset > 10 ? BigInt(offset) - 10n : 0), time: undefined, order: "oldest" });
  return html`<${Page} title="Explorer" class="explorer" subtitle=${subtitle} actions=${actions}>
    <div class="card explorer-controls">
      <div class="explorer-row">
        <${TopicInput} value=${params.topic ?? ""} onDone=${(topic) => change({ topic: topic || undefined, partition: undefined, offset: undefined })} />
        <${Typed} label="Partition" value=${params.partition ?? ""} onDone=${(partition) => change({ partition: partition || undefined })} placeholder="all" class="short" inputmode="numeric" />
        ${topics.length > 0 && html`<${ModeSwitch} live=${live} resting=${resting} onMode=${setMode} onRest=${pause} />`}
      </div>
      ${topics.length > 0 &&
      html`${!live && html`<${Beginning} params=${params} oldestFirst=${oldestFirst} onChange=${begin} />`}
        <${Conditions} params=${params} onChange=${change} />
        <${TimeSlider} range=${range.data} time=${params.time} onTime=${(time) => (time ? begin({ time, offset: undefined }) : begin({ time: undefined, offset: undefined, order: undefined }))} />`}
    </div>
    ${topics.length === 0
      ? html`<${NoTopic} />`
      : html`<${Problem} error=${feed.error} onRetry=${feed.reload} />
          <${Gaps} gaps=${feed.gaps} />
          <div class="toolbar">
            <${Status} feed=${feed} live=${live} resting=${resting} filtered=${filtered} />
            <span class="spacer"></span>
            ${feed.looking && html`<${Button} onClick=${feed.stop}>Stop looking<//>`}
            ${selected.size > 0 && html`<${Button} disabled=${selected.size !== 2} onClick=${compare} title="Select two messages">Compare ${selected.size} of 2<//><${Button} kind="quiet" onClick=${() => select(new Set())}>Clear selection<//>`}
            ${!live && html`<${Button} kind="quiet" onClick=${feed.reload}>Reload<//>`}
          </div>
          <div class=${open ? "explorer-split open" : "explorer-split"}>
            <div class="explorer-list">
              <${Table}
                caption="Messages"
                columns=${columnsOf(several)}
                rows=${feed.error && !feed.rows ? [] : feed.rows}
                id=${idOf}
                onOpen=${(row) => {
                  setOpen(row);
                  if (live) rest(true);
                }}
                selected=${selected}
                onSelect=${select}
                empty=${noRows(feed, live, filtered, oldestFirst && !filtered && (params.offset || params.time))}
              />
              ${!live && feed.next && html`<p class="actions"><${Button} busy=${feed.looking} onClick=${feed.more}>${oldestFirst ? "Newer messages" : "Older messages"}<//>${feed.ended === "budget" && !feed.looking && html`<span class="hint">It stopped after looking at ${fmt.count(feed.scanned)} messages.</span>`}</p>`}
              ${live && feed.rows?.length > 0 && html`<p class="actions"><${Button} onClick=${() => setMode("history")}><${Icon} name="down" /> Older messages<//></p>`}
            </div>
            ${open && html`<${MessagePanel} row=${open} onClose=${() => setOpen(null)} onFollow=${around} onPublished=${() => !live && feed.reload()} />`}
          </div>`}
  <//>`;
}
