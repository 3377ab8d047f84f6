// Long work on dead letters, with its progress. The broker does it: it continues when the
// page is closed, and is shown again when the page is opened.

import { Ago, Badge, Button, html, Link, Progress, toast, useEffect, useRef, useState } from "/dashboard/core/ui.js";
import { api, usePoll } from "/dashboard/core/api.js";
import { route } from "/dashboard/core/router.js";
import { fmt } from "/dashboard/core/format.js";

const RUNNING_MS = 3000;
const IDLE_MS = 15000;
// Those that ended before are history: the audit log has them.
const SHOWN_SECONDS = 600;
const SHOWN_MAX = 5;

const DOING = { "dead.replay": "Replaying", "dead.delete": "Deleting", "dead.purge": "Purging" };
const DONE = { "dead.replay": "replayed", "dead.delete": "deleted", "dead.purge": "purged" };
const WAS = { "dead.replay": "Replay", "dead.delete": "Deletion", "dead.purge": "Purge" };
const KINDS = { running: "info", done: "ok", failed: "bad", cancelled: "warn" };

const hearers = new Set();
// A task was started on this page: whoever lists tasks looks now.
export const taskStarted = () => hearers.forEach((hear) => hear());

export function TaskList({ about, onEnded }) {
  const [running, setRunning] = useState(false);
  const [closed, close] = useState(() => new Set());
  const { data, reload } = usePoll("/v1/tasks", { about }, running ? RUNNING_MS : IDLE_MS);
  const before = useRef(0);
  useEffect(() => {
    hearers.add(reload);
    return () => hearers.delete(reload);
  }, [reload]);
  const tasks = (data?.tasks ?? []).filter((task) => task.kind in DOING);
  const count = tasks.filter((task) => task.state === "running").length;
  useEffect(() => {
    setRunning(count > 0);
    if (count < before.current) onEnded?.();
    before.current = count;
  }, [count]);
  const recent = tasks.filter((task) => !closed.has(task.id) && (!task.finished || Date.now() - Date.parse(task.finished) < SHOWN_SECONDS * 1000));
  if (!recent.length) return null;
  return html`<section class="dead-tasks" aria-label="Tasks">
    ${recent.slice(0, SHOWN_MAX).map(
      (task) => html`<${Task} key=${task.id} task=${task} about=${about} reload=${reload} onClose=${() => close(new Set([...closed, task.id]))} />`,
    )}
  </section>`;
}

function Task({ task, about, reload, onClose }) {
  const [busy, setBusy] = useState(false);
  const cancel = async () => {
    setBusy(true);
    try {
      await api.delete(api.path`/v1/tasks/${task.id}`);
      toast("The task stops after its current step. Its finished work stays.");
      reload();
    } catch (fault) {
      toast(fault, { kind: "bad" });
    } finally {
      setBusy(false);
    }
  };
  const running = task.state === "running";
  const title = running ? `${DOING[task.kind]} dead letters` : `${WAS[task.kind]} of dead letters`;
  const where = !about && html`${" "}in <${Link} to=${route`/dead/${task.about}`}>${task.about}<//>`;
  return html`<div class="dead-task">
    <div class="row">
      <strong>${title}${where}</strong>
      <span class="soft">${task.detail}</span>
      <${Badge} kind=${KINDS[task.state]}>${task.state}<//>
      <span class="faint">${task.who && `by ${task.who}, `}<${Ago} time=${task.finished ?? task.started} /></span>
      <span class="spacer"></span>
      ${running
        ? html`<${Button} kind="small" busy=${busy} onClick=${cancel}>Cancel<//>`
        : html`<${Button} kind="quiet small" icon="close" aria-label="Hide this task" onClick=${onClose} />`}
    </div>
    ${running && (task.total === null ? html`<p class="soft">Looking for them…</p>` : html`<${Progress} done=${task.done} total=${task.total} label=${DOING[task.kind]} />`)}
    ${!running && html`<p>${fmt.count(task.done)} ${DONE[task.kind]}${task.failed ? `, ${fmt.count(task.failed)} not possible` : ""}.</p>`}
    ${task.error && html`<p class="bad-text dead-wrap">${task.error}</p>`}
  </div>`;
}
