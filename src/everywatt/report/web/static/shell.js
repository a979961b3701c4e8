// What all pages have: the head with its links, the theme, words for waiting and for trouble.
"use strict";

everywatt.shell = { redraws: [] };

everywatt.shell.top = function (here, title) {
  const { element } = everywatt;
  const link = (href, text) => element("a", { href, "aria-current": here === href ? "page" : null }, text);
  const theme = element("button.plain", { type: "button", onclick: () => everywatt.shell.turnTheme(theme) }, everywatt.shell.themeLabel());
  document.title = title + " · everywatt";
  return element("header.top.served", {},
    element("a.brand", { href: "/" }, element("span.mark", { "aria-hidden": "true" }), "everywatt"),
    element("nav.places", { "aria-label": "Pages" }, link("/", "Runs"), link("/live", "This machine"),
      "slurm" in document.documentElement.dataset ? link("/slurm", "Slurm jobs") : null),
    element("div.tools", {}, theme, here === "/run" ? element("button.plain", { type: "button", onclick: () => print() }, "Print") : null),
    element("h1", {}, title));
};

everywatt.shell.themeLabel = () => "Theme: " + (document.documentElement.dataset.theme || "automatic");

everywatt.shell.turnTheme = function (button) {
  const order = ["", "light", "dark"], root = document.documentElement;
  everywatt.shell.setTheme(order[(order.indexOf(root.dataset.theme || "") + 1) % order.length]);
  button.textContent = everywatt.shell.themeLabel();
};

// Kept for the other pages, where the browser keeps anything.
everywatt.shell.setTheme = function (theme) {
  const root = document.documentElement;
  if (theme === "light" || theme === "dark") root.dataset.theme = theme; else delete root.dataset.theme;
  try { localStorage.setItem("everywatt-theme", theme || ""); } catch { /* then not */ }
  everywatt.shell.redraw();
};

everywatt.shell.redraw = () => { for (const redraw of everywatt.shell.redraws) redraw(); };

everywatt.shell.begin = function () {
  try {
    const kept = localStorage.getItem("everywatt-theme");
    if (kept) everywatt.shell.setTheme(kept);
  } catch { /* then automatic */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everywatt.shell.redraw);
  matchMedia("print").addEventListener("change", everywatt.shell.redraw);
};

// JSON, or an Error in the server's words. A page whose token is no longer good goes to where one can be given.
everywatt.ask = async function (address) {
  let response;
  try { response = await fetch(address); } catch { throw new Error("The server does not respond. Is everywatt serve still running?"); }
  if (response.status === 401) location.replace("/login");
  let data = null;
  try { data = await response.json(); } catch { /* told by its status */ }
  if (!response.ok) throw new Error(data && data.error ? data.error + (data.cure ? " Try: " + data.cure : "") : "The server reports: " + response.status + ".");
  return data;
};

everywatt.shell.trouble = (text) => everywatt.element("p.card.trouble", { role: "alert" }, text);
everywatt.shell.waiting = (text) => everywatt.element("p.card.waiting", { role: "status" }, text);
