// The command palette (Ctrl+K): pages, actions of the page that is open, and topics, groups and
// queues by name.

import { html, useEffect, useLayoutEffect, useRef, useState } from "/dashboard/vendor/htm-preact.js";
import { api } from "/dashboard/core/api.js";
import { Icon } from "/dashboard/core/elements.js";
import { openDialog } from "/dashboard/core/dialogs.js";
import { go, route } from "/dashboard/core/router.js";

const commands = new Set();
const FOUND_MAX = 12;
const ASK_MS = 200;

export function addCommand(title, run, { hint = "", icon = "right" } = {}) {
  const command = { title, run, hint, icon };
  commands.add(command);
  return () => commands.delete(command);
}

// An action of the page that is open.
export function useCommand(title, run, options) {
  useLayoutEffect(() => addCommand(title, run, options));
}

export function openPalette() {
  if (document.querySelector("dialog.palette")) return;
  openDialog(({ close }) => html`<${Palette} close=${close} />`);
}

// Letters in their order, the closer together the better; -1 if they are not there.
export function score(title, wanted) {
  const text = title.toLowerCase();
  const direct = text.indexOf(wanted);
  if (direct >= 0) return 1000 - direct - text.length / 100;
  let at = -1;
  let gaps = 0;
  for (const letter of wanted) {
    const next = text.indexOf(letter, at + 1);
    if (next < 0) return -1;
    gaps += next - at - 1;
    at = next;
  }
  return 500 - gaps;
}

async function named(text, signal) {
  const ask = (path, params) => api.get(path, params, { signal }).catch(() => null);
  const [topics, groups] = await Promise.all([
    ask("/v1/topic-list", { search: text, limit: 6 }),
    ask("/v1/group-list", { search: text, limit: 6 }),
  ]);
  return [
    ...(topics?.topics ?? []).map(({ name }) => ({ title: name, hint: "Topic", icon: "topics", run: () => go(route`/topics/${name}`) })),
    ...(groups?.groups ?? []).map(({ name, kind }) =>
      kind === "queue"
        ? { title: name, hint: "Queue", icon: "queues", run: () => go(route`/queues/${name}`) }
        : { title: name, hint: "Group", icon: "groups", run: () => go(route`/groups/${name}`) },
    ),
  ];
}

function Palette({ close }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [entries, setEntries] = useState([]);
  const ref = useRef(null);

  // Before it is painted: who types at once types here.
  useLayoutEffect(() => {
    ref.current.showModal();
    return () => ref.current?.open && ref.current.close();
  }, []);
  useEffect(() => {
    setEntries([]);
    const wanted = text.trim();
    if (!wanted) return undefined;
    const control = new AbortController();
    const timer = setTimeout(async () => {
      const found = await named(wanted, control.signal);
      if (!control.signal.aborted) setEntries(found);
    }, ASK_MS);
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [text]);

  const wanted = text.trim().toLowerCase();
  const fitting = [...commands]
    .map((one) => ({ one, fit: wanted ? score(one.title, wanted) : 0 }))
    .filter(({ fit }) => fit >= 0)
    .sort((a, b) => b.fit - a.fit)
    .map(({ one }) => one);
  const found = [...fitting.slice(0, wanted ? 8 : 40), ...entries].slice(0, wanted ? FOUND_MAX : 40);
  const chosen = Math.min(at, Math.max(0, found.length - 1));

  const run = (entry) => {
    close();
    entry?.run();
  };
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      const next = (chosen + step + found.length) % found.length;
      setAt(next);
      ref.current.querySelector(`#command-${next}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(found[chosen]);
    }
  };
  return html`<dialog
    ref=${ref}
    class="palette"
    aria-label="Command palette"
    onCancel=${(event) => {
      event.preventDefault();
      close();
    }}
    onClick=${(event) => event.target === ref.current && close()}
  >
    <input
      type="text"
      role="combobox"
      aria-expanded="true"
      aria-controls="commands"
      aria-activedescendant=${found.length ? `command-${chosen}` : undefined}
      aria-label="Go to a page, topic, group or queue, or do something"
      placeholder="Go to a page, topic, group or queue, or do something"
      value=${text}
      autofocus
      autocomplete="off"
      spellcheck=${false}
      onInput=${(event) => {
        setText(event.target.value);
        setAt(0);
      }}
      onKeyDown=${key}
    />
    <ul role="listbox" id="commands" aria-label="Commands">
      ${found.map(
        (entry, i) => html`<li
          key=${`${entry.hint} ${entry.title}`}
          id=${`command-${i}`}
          role="option"
          aria-selected=${i === chosen ? "true" : "false"}
          onClick=${() => run(entry)}
          onMouseMove=${() => setAt(i)}
        >
          <${Icon} name=${entry.icon} /><span>${entry.title}</span><kbd>${entry.hint}</kbd>
        </li>`,
      )}
      ${!found.length && html`<li class="none" role="option" aria-selected="false" aria-disabled="true">Nothing has this name.</li>`}
    </ul>
  </dialog>`;
}
