// All that a page needs to show itself, in one import.

import { html, useEffect } from "/dashboard/vendor/htm-preact.js";

export {
  Component,
  createContext,
  h,
  html,
  render,
  useCallback,
  useContext,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "/dashboard/vendor/htm-preact.js";
export * from "/dashboard/core/elements.js";
export { Pager, Table } from "/dashboard/core/table.js";
export { closeAll, confirm, confirmTyped, Dialog, openDialog, toast } from "/dashboard/core/dialogs.js";

// The main part of a page: its title, what can be done, and the rest.
export function Page({ title, subtitle, actions, children, class: cls = "" }) {
  useEffect(() => {
    document.title = `${title} · Fanlog`;
  }, [title]);
  return html`<div class="page ${cls}">
    <header class="page-head">
      <div>
        <h1 tabindex="-1">${title}</h1>
        ${subtitle && html`<p class="subtitle">${subtitle}</p>`}
      </div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}
