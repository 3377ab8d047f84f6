// Dialogs and short notes. A dialog is the browser's own: it keeps the focus, and Escape closes it.
// One that is open when the visitor goes elsewhere closes: a question never outlives its page.

import { html, useLayoutEffect, useRef, useState } from "/dashboard/vendor/htm-preact.js";
import { Button, Field, Icon, Problem, useId } from "/dashboard/core/elements.js";
import { onRoute } from "/dashboard/core/router.js";

const hearers = new Set();
let dialogs = [];
let notes = [];
let count = 0;

const tell = () => hearers.forEach((hear) => hear());

export function openDialog(view, onClosed) {
  const dialog = { id: ++count, view, onClosed, back: document.activeElement };
  dialogs = [...dialogs, dialog];
  tell();
  return () => closeDialog(dialog.id);
}

function closeDialog(id) {
  const found = dialogs.find((one) => one.id === id);
  if (!found) return;
  dialogs = dialogs.filter((one) => one !== found);
  tell();
  found.onClosed?.();
  if (found.back?.isConnected) found.back.focus?.();
}

export function closeAll() {
  for (const one of [...dialogs]) closeDialog(one.id);
}

let path = location.hash.split("?")[0];
onRoute((route) => {
  if (`#${route.path}` === path) return;
  path = `#${route.path}`;
  closeAll();
});

export function toast(text, { kind = "ok", action, seconds = kind === "bad" ? 12 : 5 } = {}) {
  const note = { id: ++count, text: text?.message ?? text, kind, action };
  notes = [...notes.slice(-4), note];
  tell();
  setTimeout(() => dropNote(note.id), seconds * 1000);
}

function dropNote(id) {
  notes = notes.filter((one) => one.id !== id);
  tell();
}

// Where dialogs and notes are shown; the shell has one.
export function Dialogs() {
  const [, set] = useState(0);
  useLayoutEffect(() => {
    const hear = () => set((n) => n + 1);
    hearers.add(hear);
    return () => hearers.delete(hear);
  }, []);
  return html`${dialogs.map((one) => html`<${Frame} key=${one.id} dialog=${one} />`)}
    <div class="toasts" role="status" aria-live="polite">
      ${notes.map(
        (note) => html`<div key=${note.id} class="toast ${note.kind}">
          <${Icon} name=${note.kind === "bad" ? "bad" : "ok"} /><span>${note.text}</span>
          ${note.action &&
          html`<${Button} kind="quiet" onClick=${() => {
            dropNote(note.id);
            note.action.run();
          }}>${note.action.label}<//>`}
          <${Button} kind="quiet small" icon="close" aria-label="Dismiss" onClick=${() => dropNote(note.id)} />
        </div>`,
      )}
    </div>`;
}

function Frame({ dialog }) {
  const close = () => closeDialog(dialog.id);
  const View = dialog.view;
  return html`<${View} close=${close} />`;
}

// A form in a dialog. What `onSubmit` throws is shown, and the dialog stays. Without `submit` it only
// shows something.
export function Dialog({ title, close, onSubmit, submit = "Save", danger, disabled, wide, children, cancel = "Cancel" }) {
  const ref = useRef(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const label = useId("dialog");
  // Before it is painted: who types at once types here.
  useLayoutEffect(() => {
    const node = ref.current;
    node.showModal();
    const first = node.querySelector("[autofocus], .dialog-body input, .dialog-body textarea, .dialog-body select");
    first?.focus();
    return () => node.open && node.close();
  }, []);
  const send = async (event) => {
    event.preventDefault();
    if (!onSubmit || busy || disabled) return;
    setBusy(true);
    setError(null);
    try {
      if ((await onSubmit()) !== false) close();
    } catch (fault) {
      setError(fault);
    } finally {
      setBusy(false);
    }
  };
  return html`<dialog
    ref=${ref}
    class=${wide ? "wide" : ""}
    aria-labelledby=${label}
    onCancel=${(event) => {
      event.preventDefault();
      close();
    }}
  >
    <form onSubmit=${send} novalidate>
      <header>
        <h2 id=${label}>${title}</h2>
        <${Button} kind="quiet" icon="close" aria-label="Close" onClick=${close} />
      </header>
      <div class="dialog-body">${children}<${Problem} error=${error} /></div>
      <footer>
        <${Button} onClick=${close}>${onSubmit ? cancel : "Close"}<//>
        ${onSubmit && html`<${Button} type="submit" kind=${danger ? "danger" : "primary"} busy=${busy} disabled=${disabled}>${submit}<//>`}
      </footer>
    </form>
  </dialog>`;
}

function asked(view) {
  return new Promise((resolve) => {
    let answer = false;
    openDialog((given) => html`<${view} ...${given} onYes=${() => (answer = true)} />`, () => resolve(answer));
  });
}

// Asks; resolves with true or false.
export function confirm({ title, text, action = "Continue", danger = false }) {
  return asked(
    ({ close, onYes }) => html`<${Dialog} title=${title} close=${close} submit=${action} danger=${danger} onSubmit=${async () => onYes()}>
      ${typeof text === "string" ? html`<p>${text}</p>` : text}
    <//>`,
  );
}

// For what can't be undone: the name has to be typed.
export function confirmTyped({ title, text, name, action = "Delete" }) {
  return asked(({ close, onYes }) => html`<${Typed} ...${{ title, text, name, action, close, onYes }} />`);
}

function Typed({ title, text, name, action, close, onYes }) {
  const [typed, setTyped] = useState("");
  return html`<${Dialog} title=${title} close=${close} submit=${action} danger disabled=${typed !== name} onSubmit=${async () => onYes()}>
    ${typeof text === "string" ? html`<p>${text}</p>` : text}
    <${Field} label=${html`Type <code>${name}</code> to confirm`}>
      <input value=${typed} autocomplete="off" spellcheck=${false} onInput=${(event) => setTyped(event.target.value)} />
    <//>
  <//>`;
}
