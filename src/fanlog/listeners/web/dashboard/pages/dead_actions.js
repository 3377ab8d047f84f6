// What is done to dead letters: replay, delete, purge. Each function opens a dialog; `done` is called
// when the broker has done it, or has begun with it.

import { confirmTyped, Dialog, Field, html, openDialog, toast, useState } from "/dashboard/core/ui.js";
import { api } from "/dashboard/core/api.js";
import { fmt } from "/dashboard/core/format.js";
import { taskStarted } from "/dashboard/pages/dead_tasks.js";

// More than these are a task.
const AT_ONCE = 100;

// Without a count they are not all known yet.
const plural = (count) => (count === undefined ? "All of these dead letters" : fmt.plural(count, "dead letter"));
const number = (count) => (count === undefined ? "all" : fmt.count(count));

async function send(topic, verb, chosen, more, word) {
  const background = !chosen.ids || chosen.ids.length > AT_ONCE;
  const path = api.path`/v1/dead-letters/${topic}/` + verb;
  const answer = await api.post(path, { ...chosen, ...more, background });
  if (answer.task) {
    taskStarted();
    toast(`${word.doing} in the background.`);
  } else toast(`${plural(answer.count)} ${word.done}.`);
}

// `chosen`: {ids: […]}, {where: {…}} or {all: true}; `what` says it in words.
export function replay({ topic, chosen, count, what, done }) {
  openDialog(({ close }) => html`<${Replay} ...${{ close, topic, chosen, count, what, done }} />`);
}

function Replay({ close, topic, chosen, count, what, done }) {
  const [to, setTo] = useState("");
  const submit = async () => {
    await send(topic, "replay", chosen, to.trim() ? { to: to.trim() } : {}, { doing: "Replaying", done: "replayed" });
    done?.();
  };
  return html`<${Dialog} title=${`Replay ${what}`} close=${close} submit=${`Replay ${number(count)}`} onSubmit=${submit}>
    <p>
      ${plural(count)} will go back to the end of the topic that the job came from. Queues and readers there get the job again. The dead letter
      is deleted when its job is stored there.
    </p>
    <p class="soft">Fix the cause first: a job that fails again makes a new dead letter.</p>
    <${Field} label="To another topic" hint="Leave it empty for the topics that the jobs came from.">
      <input value=${to} autocomplete="off" spellcheck=${false} onInput=${(event) => setTo(event.target.value)} />
    <//>
  <//>`;
}

export function remove({ topic, chosen, count, what, done }) {
  const submit = async () => {
    await send(topic, "delete", chosen, {}, { doing: "Deleting", done: "deleted" });
    done?.();
  };
  openDialog(
    ({ close }) => html`<${Dialog} title=${`Delete ${what}`} close=${close} danger submit=${`Delete ${number(count)}`} onSubmit=${submit}>
      <p>${plural(count)} will be deleted for good. The jobs are not done, and nobody gets them again. Export them first if you may need them.</p>
    <//>`,
  );
}

// Many at once: the topic's name has to be typed.
export async function removeMany({ topic, chosen, count, what, done }) {
  const sure = await confirmTyped({
    title: chosen.all ? `Purge ${topic}` : `Delete ${what}`,
    text: `${plural(count)} will be deleted for good. The jobs are not done, and nobody gets them again. Export them first if you may need them.`,
    name: topic,
    action: chosen.all ? "Purge" : `Delete ${number(count)}`,
  });
  if (!sure) return;
  try {
    await send(topic, "delete", chosen, {}, { doing: chosen.all ? "Purging" : "Deleting", done: "deleted" });
    done?.();
  } catch (fault) {
    toast(fault, { kind: "bad" });
  }
}
