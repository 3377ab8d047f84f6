// Light or dark: as the system has it, or as the visitor chose.

const KEY = "fanlog.theme";
const ORDER = ["system", "light", "dark"];

function kept() {
  try {
    return localStorage.getItem(KEY) ?? "system";
  } catch {
    return "system"; // The browser keeps nothing for this page.
  }
}

export function theme() {
  return ORDER.includes(kept()) ? kept() : "system";
}

export function applyTheme(name = theme()) {
  const root = document.documentElement;
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
}

export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // It lasts until the page is closed.
  }
  applyTheme(next);
  window.dispatchEvent(new Event("themechange"));
  return next;
}
