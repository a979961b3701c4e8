// Small pieces of the page. Text only ever becomes text: nothing from the document is read as markup.
"use strict";

// element("p.note", {title: "…"}, "text", child, …)
everywatt.element = function (kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
};

// A head that is empty on the screen has a name for screen readers.
everywatt.table = function (caption, heads, rows, right) {
  const { element } = everywatt;
  const cell = (tag, text, i, more) => element(tag + (right && right.includes(i) ? ".number" : ""), more, text);
  return element("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table: " + caption },
    element("table", {}, element("caption.hidden", {}, caption),
      element("thead", {}, element("tr", {}, heads.map((head, i) => cell("th", head || element("span.hidden", {}, i ? "Remark" : "Name"), i, { scope: "col" })))),
      element("tbody", {}, rows.map((row) => element("tr", {},
        row.map((text, i) => i === 0 ? cell("th", text, i, { scope: "row" }) : cell("td", text, i)))))));
};

everywatt.section = function (id, title, about, ...children) {
  const { element } = everywatt;
  return element("section.card", { id, "aria-labelledby": id + "-title" },
    element("div.head", {}, element("h2", { id: id + "-title" }, title), about ? element("p.about", {}, about) : null), children);
};

everywatt.percent = (share) => share === null || share === undefined ? "–" : (100 * share).toFixed(Math.abs(share) >= 0.0995 ? 1 : 2).replace("-", "−") + " %";

// What the figure of an energy does not cover, "" where it covers all.
everywatt.partly = (energy) => energy.joules !== null && energy.coverage < 0.9995 ? "coverage " + energy.coverage_shown : "";

everywatt.copyButton = function (label, text) {
  const button = everywatt.element("button.plain", {
    type: "button",
    onclick: async () => {
      let done = true;
      try { await navigator.clipboard.writeText(text()); } catch { done = everywatt.copyOldWay(text()); }
      button.textContent = done ? "Copied" : "Select and copy it by hand";
      setTimeout(() => { button.textContent = label; }, 1600);
    },
  }, label);
  return button;
};

// Pages opened from a file have no clipboard in some browsers.
everywatt.copyOldWay = function (text) {
  const area = everywatt.element("textarea.offscreen", { "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
};

// Horizontal bars with their intervals: [{name, about, value, low, high, shown, share, colour}]. Of many the largest are
// shown at once, in the given order.
everywatt.bars = function (label, rows) {
  const { element } = everywatt, atOnce = 12;
  const most = Math.max(...rows.map((row) => Math.max(row.high ?? 0, row.value ?? 0)), 1e-12);
  const list = (some) => element("ul.bars", { "aria-label": label }, some.map((row) => {
    const bar = element("span.bar"), whisker = element("span.whisker");
    const share = (x) => Math.min(100, Math.max(0, 100 * (x || 0) / most));
    bar.style.width = share(row.value) + "%";
    bar.style.background = row.colour;
    bar.hidden = row.value === null;
    if (row.low !== null && row.low !== undefined && row.value !== null) {
      whisker.style.left = share(row.low) + "%";
      whisker.classList.toggle("open", row.low < 0); // it goes on below zero, where there is no track
      whisker.style.width = Math.max(0, share(row.high) - share(row.low)) + "%";
    } else whisker.hidden = true;
    return element("li", {},
      element("span.name", {}, element("span.what", { title: row.name }, row.name), row.about ? element("span.about", {}, row.about) : null),
      element("span.track", { "aria-hidden": "true" }, bar, whisker),
      element("span.value", {}, row.shown, row.share === undefined || row.share === null ? null : element("span.about", {}, everywatt.percent(row.share))));
  }));
  if (rows.length <= atOnce + 2) return list(rows);
  const large = new Set([...rows].sort((a, b) => (b.value ?? 0) - (a.value ?? 0)).slice(0, atOnce));
  const small = rows.filter((row) => !large.has(row));
  return element("div", {}, list(rows.filter((row) => large.has(row))), element("details", {}, element("summary", {}, small.length + " smaller ones"), list(small)));
};

// One bar that is the whole, with its parts.
everywatt.whole = function (rows) {
  const { element } = everywatt;
  return element("div.whole", { "aria-hidden": "true" }, rows.map((row) => {
    const part = element("span", { title: row.name + ": " + row.shown });
    part.style.flexGrow = String(Math.max(row.share || 0, 0.002));
    part.style.background = everywatt.paint(row.colour, row.dashed);
    return part;
  }));
};

everywatt.paint = (colour, dashed) => dashed ? `repeating-linear-gradient(90deg, ${colour} 0 4px, transparent 4px 7px)` : colour;

everywatt.swatch = function (colour, dashed = false) {
  const node = everywatt.element("span.swatch", { "aria-hidden": "true" });
  node.style.background = everywatt.paint(colour, dashed);
  return node;
};

// The interval of a figure, smaller than the figure.
everywatt.withSpread = function (shown) {
  const at = shown.search(/ (±|−\d)/);
  return at < 0 ? [shown] : [everywatt.element("span.amount", {}, shown.slice(0, at)), everywatt.element("span.spread", {}, shown.slice(at))];
};

everywatt.svg = function (tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
};

// Words in pairs: [[label, text]…].
everywatt.pairs = function (pairs) {
  const { element } = everywatt;
  return element("dl.pairs", {}, pairs.map(([label, text]) => element("div", {}, element("dt", {}, label), element("dd", {}, text))));
};

// Where an arrow key leads among things in rows, each row from left to right; from one row to the next by their places.
everywatt.neighbour = function (rows, here, key, left) {
  const level = rows.findIndex((row) => row.includes(here)), row = rows[level], at = row.indexOf(here);
  const near = (some) => some && (some.filter((one) => left(one) <= left(here) + 1e-9).pop() || some[0]);
  return { ArrowRight: row[at + 1], ArrowLeft: row[at - 1], ArrowDown: near(rows[level + 1]), ArrowUp: near(rows[level - 1]) }[key];
};

// Turns the theme of the page: automatic, light, dark.
everywatt.themeButton = function (changed) {
  const root = document.documentElement, label = () => "Theme: " + (root.dataset.theme || "automatic");
  const button = everywatt.element("button.plain", { type: "button", onclick: () => {
    const order = ["", "light", "dark"];
    everywatt.setTheme(order[(order.indexOf(root.dataset.theme || "") + 1) % order.length]);
    button.textContent = label();
    changed();
  } }, label());
  return button;
};

everywatt.setTheme = function (theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
};
