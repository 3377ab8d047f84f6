// What can be done to a topic: create, change, grow, compact, truncate and delete it. Each function
// opens a dialog; `done` is called when the broker has done it.

import { confirm, confirmTyped, Dialog, Field, html, openDialog, Select, Stat, Stats, toast, useEffect, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { go, route } from "/dashboard/core/router.js";
import { asText, readSettings, SettingFields, SETTINGS } from "/dashboard/pages/topic_settings.js";

const PREVIEW_MS = 350;

export function createTopic({ admin, auth, defaults = {} } = {}) {
  openDialog(({ close }) => html`<${Create} close=${close} defaults=${defaults} admin=${admin && auth} />`);
}

function Create({ close, admin, defaults }) {
  const [name, setName] = useState("");
  const [texts, setTexts] = useState({ partitions: String(defaults.partitions ?? 1) });
  const { found, wrong } = readSettings(texts);
  const create = async () => {
    const made = await api.post("/v1/topics", { name: name.trim(), ...found });
    toast(`The topic ${made.name} is there.`);
    close();
    go(route`/topics/${made.name}`);
  };
  return html`<${Dialog} title="Create a topic" close=${close} wide submit="Create" disabled=${!name.trim() || wrong} onSubmit=${create}>
    <${Field} label="Name" hint="Dots make a hierarchy that patterns can follow: orders.eu, orders.us.">
      <input value=${name} autocomplete="off" spellcheck=${false} placeholder="orders" onInput=${(event) => setName(event.target.value)} />
    <//>
    <${SettingFields} settings=${SETTINGS} texts=${texts} setTexts=${setTexts} defaults=${defaults} admin=${admin} />
  <//>`;
}

export function alterTopic(topic, done, { admin, auth } = {}) {
  openDialog(({ close }) => html`<${Alter} ...${{ close, topic, done }} admin=${admin && auth} />`);
}

function Alter({ close, topic, done, admin }) {
  const settings = SETTINGS.filter((one) => one.alter !== false);
  const [before] = useState(() => Object.fromEntries(settings.map((one) => [one.key, asText(one, topic.settings[one.key])])));
  const [texts, setTexts] = useState(before);
  const changed = Object.fromEntries(settings.map((one) => [one.key, texts[one.key] === before[one.key] ? "" : texts[one.key]]));
  // What is not changed still decides which fields there are.
  const { wrong } = readSettings(texts, settings);
  const { found } = readSettings({ ...changed, cleanup: texts.cleanup }, settings);
  if (texts.cleanup === before.cleanup) delete found.cleanup;
  if (texts.owner === "" && before.owner) found.owner = "";
  const count = Object.keys(found).length;
  const shorter = Number(found.retention_seconds) > 0 || Number(found.retention_bytes) > 0;
  const save = async () => {
    await api.patch(api.path`/v1/topics/${topic.name}`, found);
    toast(`Changed ${fmt.plural(count, "setting")} of ${topic.name}.`);
    done();
  };
  return html`<${Dialog} title=${`Change settings of ${topic.name}`} close=${close} wide submit=${count ? `Change ${fmt.plural(count, "setting")}` : "Change"} disabled=${wrong || !count} onSubmit=${save}>
    <${SettingFields} settings=${settings} texts=${texts} setTexts=${setTexts} defaults=${null} admin=${admin} />
    ${shorter && html`<p class="notice warn">Messages that are past a shorter retention go at once, and don't come back.</p>`}
  <//>`;
}

export function growTopic(topic, done) {
  openDialog(({ close }) => html`<${Grow} ...${{ close, topic, done }} />`);
}

function Grow({ close, topic, done }) {
  const now = topic.partition_count;
  const [text, setText] = useState(String(now + 1));
  const wanted = Number(text);
  const fine = Number.isInteger(wanted) && wanted > now && wanted <= 4096;
  const grow = async () => {
    await api.post(api.path`/v1/topics/${topic.name}/grow`, { partitions: wanted });
    toast(`${topic.name} has ${fmt.plural(wanted, "partition")} now.`);
    done();
  };
  return html`<${Dialog} title=${`Add partitions to ${topic.name}`} close=${close} submit="Add partitions" disabled=${!fine} onSubmit=${grow}>
    <${Field} label="Partitions" hint=${`It has ${fmt.count(now)} now. How many in all, at most 4,096? None can be removed later.`} error=${text && !fine ? `Write a number from ${now + 1} to 4096.` : ""}>
      <input type="number" min=${now + 1} max="4096" value=${text} onInput=${(event) => setText(event.target.value)} />
    <//>
    <p class="notice warn">Keys go to other partitions from now on. Readers that need the messages of a key in order should read everything before.</p>
  <//>`;
}

export async function compactTopic(topic, done) {
  const yes = await confirm({
    title: `Compact ${topic.name}`,
    text: "Of each key only the last message stays. The broker does this by itself when it is worthwhile; now it does it at once.",
    action: "Compact",
  });
  if (!yes) return;
  try {
    const before = topic.bytes;
    const after = await api.post(api.path`/v1/topics/${topic.name}/compact`);
    const size = after.partitions.reduce((sum, one) => sum + Number(one.bytes), 0);
    toast(`Compacted ${topic.name}: ${fmt.bytes(before)} before, ${fmt.bytes(size)} now.`);
  } catch (fault) {
    toast(fault, { kind: "bad" });
  }
  done();
}

export function truncateTopic(topic, done) {
  openDialog(({ close }) => html`<${Truncate} ...${{ close, topic, done }} />`);
}

const WAYS = [
  ["age", "Older than an age"],
  ["time", "Before a time"],
  ["offsets", "Before an offset"],
  ["everything", "Everything"],
];

// What to delete, as the broker takes it; null while it is not known.
function truncation(way, age, time, offset, partition) {
  if (way === "everything") return { before: "latest" };
  if (way === "age") return /^\d+(\.\d+)?\s*(ms|s|m|h|d|w)$/i.test(age.trim()) ? { before: age.trim().replace(/\s+/, "") } : null;
  if (way === "time") {
    const date = time ? new Date(time) : null;
    return date && !Number.isNaN(date.getTime()) ? { before: date.toISOString() } : null;
  }
  return /^\d+$/.test(offset.trim()) && /^\d+$/.test(partition) ? { offsets: { [partition]: BigInt(offset.trim()) } } : null;
}

function Truncate({ close, topic, done }) {
  const [way, setWay] = useState("age");
  const [age, setAge] = useState("7d");
  const [time, setTime] = useState("");
  const [offset, setOffset] = useState("");
  const [partition, setPartition] = useState("0");
  const [typed, setTyped] = useState("");
  const [preview, setPreview] = useState(null);
  const path = api.path`/v1/topics/${topic.name}/truncate`;
  const body = truncation(way, age, time, offset, partition);
  const key = body ? `${way} ${body.before ?? `${partition} ${offset}`}` : "";
  useEffect(() => {
    setPreview(null);
    if (!body) return undefined;
    let gone = false;
    const timer = setTimeout(
      () => api.post(path, { ...body, dry_run: true }).then((found) => !gone && setPreview(found), (error) => !gone && setPreview({ error })),
      PREVIEW_MS,
    );
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [key]);
  const goes = preview?.messages;
  const truncate = async () => {
    // Exactly what was counted: messages that came meanwhile stay.
    const found = await api.post(path, { offsets: preview.offsets });
    toast(`Deleted ${fmt.plural(found.messages, "message")} of ${topic.name}.`);
    done();
  };
  return html`<${Dialog} title=${`Delete messages of ${topic.name}`} close=${close} danger submit=${goes ? `Delete ${fmt.plural(goes, "message")}` : "Delete"} disabled=${!goes || typed !== topic.name} onSubmit=${truncate}>
    <${Select} label="Which messages" value=${way} options=${WAYS} onChange=${setWay} />
    ${way === "age" && html`<${Field} label="Older than" hint="Such as 30m, 12h or 7d."><input value=${age} autocomplete="off" onInput=${(event) => setAge(event.target.value)} /><//>`}
    ${way === "time" && html`<${Field} label="Published before" hint="In your local time."><input type="datetime-local" step="1" value=${time} onInput=${(event) => setTime(event.target.value)} /><//>`}
    ${way === "offsets" &&
    html`<div class="fields">
      <${Field} label="Partition"><input type="number" min="0" max=${topic.partition_count - 1} value=${partition} onInput=${(event) => setPartition(event.target.value)} /><//>
      <${Field} label="First offset to keep"><input inputmode="numeric" value=${offset} autocomplete="off" onInput=${(event) => setOffset(event.target.value)} /><//>
    </div>`}
    <${Preview} ...${{ body, preview, topic }} />
    ${goes > 0 &&
    html`<${Field} label=${html`Type <code>${topic.name}</code> to confirm`}>
      <input value=${typed} autocomplete="off" spellcheck=${false} onInput=${(event) => setTyped(event.target.value)} />
    <//>`}
  <//>`;
}

function Preview({ body, preview, topic }) {
  if (!body) return html`<p class="hint">Say which messages, then you see how many would go.</p>`;
  if (!preview) return html`<p class="hint" role="status">Counting …</p>`;
  if (preview.error) return html`<p class="error" role="alert">${preview.error.message}</p>`;
  const all = Number(preview.messages) >= Number(topic.messages) && Number(topic.messages) > 0;
  return html`<div role="status">
    <${Stats}>
      <${Stat} label="Messages that go" value=${fmt.count(preview.messages)} kind=${Number(preview.messages) > 0 ? "bad" : ""} hint=${all ? "all that are there" : ""} />
      <${Stat} label="Messages that stay" value=${fmt.count(Math.max(0, Number(topic.messages) - Number(preview.messages)))} />
    <//>
  </div>
  ${Number(preview.messages) > 0 ? html`<p class="hint">They are deleted for good. Groups that have not read them never will.</p>` : html`<p class="hint">Nothing would go.</p>`}`;
}

export async function deleteTopic(topic) {
  const yes = await confirmTyped({
    title: `Delete the topic ${topic.name}`,
    text: html`<p>
      ${Number(topic.messages) > 0 ? html`<strong>${fmt.plural(topic.messages, "message")}</strong> and all positions of groups go with it` : "All positions of groups go with it"}, for good.
      ${Number(topic.reader_count) > 0 && html` ${fmt.plural(topic.reader_count, "reader")} read it now.`}
    </p>`,
    name: topic.name,
    action: "Delete the topic",
  });
  if (!yes) return;
  try {
    await api.delete(api.path`/v1/topics/${topic.name}`);
    toast(`The topic ${topic.name} is deleted.`);
    go("/topics");
  } catch (fault) {
    toast(fault, { kind: "bad" });
  }
}
