// Tables: real ones, for screen readers, with rows that the keyboard can walk through.

import { html, useRef } from "/dashboard/vendor/htm-preact.js";
import { Button, Icon } from "/dashboard/core/elements.js";
import { fmt } from "/dashboard/core/format.js";

const SKELETON = [1, 2, 3, 4, 5];

export function Table({ columns, rows, id, sort, descending, onSort, onOpen, selected, onSelect, empty = "Nothing here.", busy, caption }) {
  const body = useRef(null);
  const picks = Boolean(onSelect);

  const walk = (event) => {
    const row = event.target.closest("tr[data-row]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const own = event.target === row;
    const to = { ArrowDown: row.nextElementSibling, j: row.nextElementSibling, ArrowUp: row.previousElementSibling, k: row.previousElementSibling }[event.key];
    if (to !== undefined && (own || event.key.startsWith("Arrow")) && event.target.tagName !== "INPUT") {
      event.preventDefault();
      to?.focus();
    } else if (own && event.key === "Enter" && onOpen) {
      event.preventDefault();
      onOpen(rows[Number(row.dataset.row)]);
    } else if (own && event.key === " " && picks) {
      event.preventDefault();
      toggle(rows[Number(row.dataset.row)]);
    }
  };

  const toggle = (row) => {
    const next = new Set(selected);
    if (!next.delete(id(row))) next.add(id(row));
    onSelect(next);
  };

  const opens = (event, row) => {
    if (!onOpen || event.target.closest("a, button, input, label, select, summary")) return;
    if (String(getSelection())) return;
    onOpen(row);
  };

  const all = picks && rows?.length > 0 && rows.every((row) => selected.has(id(row)));
  const columnCount = columns.length + (picks ? 1 : 0);
  return html`<div class="table-frame" tabindex="-1">
    <table class=${busy ? "busy" : ""} aria-busy=${busy || rows === undefined ? "true" : "false"}>
      ${caption && html`<caption class="unseen">${caption}</caption>`}
      <thead>
        <tr>
          ${picks &&
          html`<th scope="col" class="pick">
            <input
              type="checkbox"
              aria-label="Select all on this page"
              checked=${all}
              onChange=${() => {
                const next = new Set(selected);
                for (const row of rows ?? []) all ? next.delete(id(row)) : next.add(id(row));
                onSelect(next);
              }}
            />
          </th>`}
          ${columns.map((column) => html`<${Head} key=${column.key} ...${{ column, sort, descending, onSort }} />`)}
        </tr>
      </thead>
      <tbody ref=${body} onKeyDown=${walk}>
        ${rows === undefined &&
        SKELETON.map((n) => html`<tr key=${n} class="skeleton" aria-hidden="true"><td colspan=${columnCount}><span></span></td></tr>`)}
        ${rows?.length === 0 && html`<tr class="none"><td colspan=${columnCount}>${empty}</td></tr>`}
        ${rows?.map(
          (row, i) => html`<tr
            key=${id ? id(row) : i}
            data-row=${i}
            tabindex="0"
            class=${[onOpen ? "opens" : "", selected?.has(id?.(row)) ? "selected" : ""].join(" ")}
            onClick=${(event) => opens(event, row)}
          >
            ${picks &&
            html`<td class="pick">
              <input type="checkbox" aria-label=${`Select ${id(row)}`} checked=${selected.has(id(row))} onChange=${() => toggle(row)} />
            </td>`}
            ${columns.map(
              (column) => html`<td key=${column.key} class=${cellClass(column)} data-label=${column.label}>
                ${column.cell ? column.cell(row) : row[column.key]}
              </td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

const cellClass = (column) =>
  [column.align === "right" ? "right" : "", column.hideOnPhone ? "wide-only" : "", column.class ?? ""].join(" ").trim() || undefined;

function Head({ column, sort, descending, onSort }) {
  const name = column.sort === true ? column.key : column.sort;
  const own = name && sort === name;
  const order = own ? (descending ? "descending" : "ascending") : undefined;
  if (!name || !onSort) return html`<th scope="col" class=${cellClass(column)} title=${column.title}>${column.label}</th>`;
  return html`<th scope="col" class=${cellClass(column)} title=${column.title} aria-sort=${order ?? "none"}>
    <button type="button" class="sort" onClick=${() => onSort(name, own ? !descending : column.align === "right")}>
      ${column.label}${own && html`<${Icon} name=${descending ? "down" : "up"} />`}
    </button>
  </th>`;
}

export function Pager({ offset, limit, total, onChange, noun = "" }) {
  if (total === undefined || (total <= limit && !offset)) {
    return total ? html`<p class="pager"><span>${fmt.count(total)} ${noun}</span></p>` : null;
  }
  const last = Math.min(offset + limit, total);
  return html`<nav class="pager" aria-label="Pages">
    <${Button} icon="left" kind="quiet" aria-label="Previous page" disabled=${offset <= 0} onClick=${() => onChange(Math.max(0, offset - limit))} />
    <span>${fmt.count(offset + 1)}–${fmt.count(last)} of ${fmt.count(total)} ${noun}</span>
    <${Button} icon="right" kind="quiet" aria-label="Next page" disabled=${last >= total} onClick=${() => onChange(offset + limit)} />
  </nav>`;
}
