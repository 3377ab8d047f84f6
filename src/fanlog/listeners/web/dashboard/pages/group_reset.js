// The dialog that moves a group or queue to another position. It shows what would happen before it
// does it.

import { Button, Dialog, Field, html, openDialog, Select, Table, toast, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { openNotNow, whyBusy } from "/dashboard/pages/group_parts.js";

const SHOWN = 200;
const STARTS = [
  ["earliest", "Beginning: read all again"],
  ["latest", "End: skip what is there"],
  ["time", "A time"],
  ["age", "Some time ago"],
  ["offset", "An offset"],
];
const UNITS = [["m", "minutes"], ["h", "hours"], ["d", "days"], ["s", "seconds"]];

export function openReset(group, queue, done) {
  if (whyBusy(group, queue)) openNotNow(group, queue, `Reset ${group.name}`);
  else openDialog(({ close }) => html`<${Reset} ...${{ group, queue, close, done }} />`);
}

// "0, 2, 5-7" as numbers; null for all of them.
export function readPartitions(text) {
  if (!text.trim()) return null;
  const found = new Set();
  for (const part of text.split(",")) {
    const range = part.trim().match(/^(\d{1,7})(?:\s*-\s*(\d{1,7}))?$/);
    if (!range) throw new Error(`“${part.trim()}” is no partition. Write them like this: 0, 2, 5-7`);
    const [first, last] = [Number(range[1]), Number(range[2] ?? range[1])];
    if (last < first || last - first > 10_000) throw new Error(`“${part.trim()}” is no range of partitions.`);
    for (let number = first; number <= last; number += 1) found.add(number);
  }
  return [...found];
}

function startOf({ start, time, age, unit, offset }) {
  if (start === "time") {
    const date = new Date(time);
    if (Number.isNaN(date.getTime())) throw new Error("Say which time.");
    return date.toISOString();
  }
  if (start === "age") {
    if (!/^\d{1,4}$/.test(age.trim())) throw new Error("Say how long ago, as a whole number below 10,000.");
    return `${age.trim()}${unit}`;
  }
  if (start === "offset") {
    if (!/^\d{1,18}$/.test(offset.trim())) throw new Error("Say which offset, as a whole number.");
    return BigInt(offset.trim());
  }
  return start;
}

function Reset({ group, queue, close, done }) {
  const [given, setGiven] = useState({ start: "earliest", time: "", age: "10", unit: "m", offset: "0", topic: "", partitions: "" });
  const [plan, setPlan] = useState(null);
  const set = (changes) => {
    setGiven({ ...given, ...changes });
    setPlan(null);
  };
  const input = (name) => ({ value: given[name], autocomplete: "off", onInput: (event) => set({ [name]: event.target.value }) });
  const send = (dryRun) => {
    const start = startOf(given);
    const body = { start: typeof start === "bigint" && start <= Number.MAX_SAFE_INTEGER ? Number(start) : start, dry_run: dryRun };
    if (given.topic) Object.assign(body, { topic: given.topic, partitions: readPartitions(given.partitions) });
    return api.post(api.path`/v1/groups/${group.name}/reset`, body);
  };
  const submit = async () => {
    if (!plan) {
      setPlan((await send(true)).steps);
      return false;
    }
    const { steps } = await send(false);
    toast(`${group.name} has a new position in ${fmt.plural(steps.length, "partition")}.`);
    done();
    return true;
  };
  const many = group.topic_count > group.topics.length;
  return html`<${Dialog}
    title=${`Reset ${group.name}`}
    close=${close}
    wide=${plan !== null}
    submit=${plan ? `Reset ${fmt.plural(plan.length, "partition")}` : "Preview"}
    danger=${plan !== null}
    disabled=${plan?.length === 0}
    onSubmit=${submit}
  >
    <p class="soft">Choose where the ${queue ? "queue" : "group"} continues. You see what would happen before anything changes.</p>
    <div class="fields">
      <${Field} label="Continue at">
        <select value=${given.start} onChange=${(event) => set({ start: event.target.value })}>
          ${STARTS.map(([id, text]) => html`<option key=${id} value=${id} selected=${id === given.start}>${text}</option>`)}
        </select>
      <//>
      ${given.start === "time" && html`<${Field} label="Time" hint="In your time zone. The first message from then on."><input type="datetime-local" step="1" ...${input("time")} /><//>`}
      ${given.start === "age" &&
      html`<${Field} label="How long ago"><input inputmode="numeric" ...${input("age")} /><//>
        <${Select} label="Unit" value=${given.unit} options=${UNITS} onChange=${(unit) => set({ unit })} />`}
      ${given.start === "offset" && html`<${Field} label="Offset" hint="The same in every partition. Beyond the end means the end."><input inputmode="numeric" ...${input("offset")} /><//>`}
      <${Field} label="Topic" hint=${many ? `One of its ${fmt.count(group.topic_count)} topics. Empty: all of them.` : ""}>
        ${many
          ? html`<input ...${input("topic")} spellcheck=${false} />`
          : html`<select value=${given.topic} onChange=${(event) => set({ topic: event.target.value })}>
              <option value="" selected=${!given.topic}>All its topics</option>
              ${group.topics.map(({ name }) => html`<option key=${name} value=${name} selected=${name === given.topic}>${name}</option>`)}
            </select>`}
      <//>
      ${given.topic && html`<${Field} label="Partitions" hint="Such as 0, 2, 5-7. Empty: all of them."><input ...${input("partitions")} /><//>`}
    </div>
    ${plan && html`<${Plan} steps=${plan} queue=${queue} />`}
  <//>`;
}

// What changes, added up, and the first partitions one by one.
export function sumUp(steps) {
  let again = 0n;
  let skipped = 0n;
  for (const step of steps) {
    if (step.before === null) continue;
    const moved = BigInt(step.after) - BigInt(step.before);
    if (moved < 0n) again -= moved;
    else skipped += moved;
  }
  return { again, skipped, fresh: steps.filter((step) => step.before === null).length };
}

function Plan({ steps, queue }) {
  const { again, skipped, fresh } = sumUp(steps);
  const [shown, setShown] = useState(SHOWN);
  const noun = queue ? "job" : "message";
  if (!steps.length) return html`<p class="notice warn" role="status">Nothing would change: it has committed nothing there.</p>`;
  return html`<div class="stack" role="status">
      <p class="notice warn">
        <strong>${fmt.plural(steps.length, "partition")}</strong> would be set.
        ${again ? ` ${fmt.plural(again, noun)} would be ${queue ? "done" : "read"} again.` : ""}
        ${skipped ? ` ${fmt.plural(skipped, noun)} would be skipped.` : ""}
        ${!again && !skipped && !fresh ? " It is there already." : ""}
        ${fresh ? ` ${fmt.plural(fresh, "partition")} had no position before.` : ""}
        ${queue ? " What is before the new position counts as done; failed attempts are forgotten." : ""}
      </p>
    </div>
    <${Table} caption="What would change" columns=${PLAN} rows=${steps.slice(0, shown)} id=${(step) => `${step.topic}/${step.partition}`} />
    ${steps.length > shown && html`<${Button} onClick=${() => setShown(shown + 1000)}>Show more of ${fmt.count(steps.length)}<//>`}`;
}

function moved(step) {
  if (step.before === null) return html`<span class="soft">new</span>`;
  const by = BigInt(step.after) - BigInt(step.before);
  if (by === 0n) return html`<span class="faint">stays</span>`;
  return by < 0n ? html`<span class="nowrap">${fmt.count(-by)} again</span>` : html`<span class="warn-text nowrap">${fmt.count(by)} skipped</span>`;
}

const PLAN = [
  { key: "topic", label: "Partition", cell: (step) => html`${step.topic} <span class="soft">/ ${step.partition}</span>` },
  { key: "before", label: "Now", align: "right", cell: (step) => (step.before === null ? html`<span class="faint">none</span>` : fmt.count(step.before)) },
  { key: "after", label: "Then", align: "right", cell: (step) => html`<strong>${fmt.count(step.after)}</strong>` },
  { key: "moved", label: "Change", align: "right", cell: moved },
];
