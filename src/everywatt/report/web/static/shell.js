// What all pages have: the head with its links, the theme, words for waiting and for trouble.
"use strict";

everywatt.shell = { redraws: [] };

everywatt.shell.top = function (here, title) {
  const { element } = everywatt;
  const link = (href, text) => element("a", { href, "aria-current": here === href ? "page" : null }, text);
  const theme = everywatt.themeButton(everywatt.shell.keepTheme);
  document.title = title + " · everywatt";
  return element("header.top.served", {},
    element("a.brand", { href: "/" }, element("span.mark", { "aria-hidden": "true" }), "everywatt"),
    element("nav.places", { "aria-label": "Pages" }, link("/", "Runs"), link("/live", "Live"),
      "slurm" in document.documentElement.dataset ? link("/slurm", "Slurm jobs") : null),
    element("div.tools", {}, theme, here === "/run" ? element("button.plain", { type: "button", onclick: () => print() }, "Print") : null),
    element("h1", {}, title));
};

// Kept for the other pages, where the browser keeps anything.
everywatt.shell.keepTheme = function () {
  try { localStorage.setItem("everywatt-theme", document.documentElement.dataset.theme || ""); } catch { /* then not */ }
  everywatt.shell.redraw();
};

everywatt.shell.redraw = () => { for (const redraw of everywatt.shell.redraws) redraw(); };

everywatt.shell.begin = function () {
  try { everywatt.setTheme(localStorage.getItem("everywatt-theme")); } catch { /* then automatic */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everywatt.shell.redraw);
  matchMedia("print").addEventListener("change", everywatt.shell.redraw);
};

// JSON, or an Error in the server's words. A page whose token is no longer good goes to where one can be given.
everywatt.ask = async function (address) {
  let response;
  try { response = await fetch(address); } catch { throw new Error("The server does not respond. Is everywatt serve still running?"); }
  if (response.status === 401) location.replace("/login");
  let data = null;
  try { data = await response.json(); } catch { /* the status says why */ }
  if (!response.ok) throw new Error(data && data.error ? data.error + (data.cure ? " Try: " + data.cure : "") : "The server reports: " + response.status + ".");
  return data;
};

everywatt.shell.trouble = (text) => everywatt.element("p.card.trouble", { role: "alert" }, text);
everywatt.shell.waiting = (text) => everywatt.element("p.card.waiting", { role: "status" }, text);
