// The list of runs: search, tags, sort, pick some and compare them.
"use strict";

everywatt.RunList = class {
  constructor(root) {
    this.root = root;
    this.rows = [];
    this.picked = new Set();
    this.most = 250;
    const asked = new URLSearchParams(location.search);
    this.query = asked.get("q") || "";
    this.tags = new Set(asked.getAll("tag"));
    this.sort = everywatt.RunList.columns.some((column) => column.id === asked.get("sort") && column.key) ? asked.get("sort") : "started";
    this.down = asked.has("sort") ? asked.get("down") === "1" : true;
  }

  async show() {
    const { element } = everywatt;
    this.search = element("input", { type: "search", id: "search", placeholder: "Name, command, tag, host", value: this.query, autocomplete: "off", spellcheck: "false",
      oninput: () => { this.query = this.search.value; this.most = 250; this.draw(); } });
    this.order = element("select", { id: "order", onchange: () => this.sortBy(...this.order.value.split(" ")) },
      everywatt.RunList.columns.filter((column) => column.key).flatMap((column) => [
        element("option", { value: column.id + " 1" }, column.title + ", " + column.most), element("option", { value: column.id + " 0" }, column.title + ", " + column.least)]));
    this.facets = element("div.facets", { role: "group", "aria-label": "Show only runs with these tags" });
    this.count = element("p.count.about", { role: "status" });
    this.bar = element("div.picked", { role: "region", "aria-label": "Selected runs" });
    this.body = element("tbody");
    this.heads = element("tr");
    this.more = element("button.more", { type: "button", onclick: () => { this.most += 500; this.draw(); } });
    this.home = element("p.about");
    this.root.replaceChildren(everywatt.shell.top("/", "Runs"),
      element("main", { id: "main" }, element("section.card.list", { "aria-label": "Runs" },
        element("div.finder", {}, element("div.field.wide", {}, element("label", { for: "search" }, "Search"), this.search), element("div.field.order", {}, element("label", { for: "order" }, "Sort"), this.order)),
        this.facets, element("div.line", {}, this.count, this.home),
        element("div.scroll.runs", { tabindex: "0", role: "region", "aria-label": "Table of runs" }, element("table", {}, element("caption.hidden", {}, "Runs"), element("thead", {}, this.heads), this.body)), this.more),
      this.bar));
    document.addEventListener("keydown", (event) => this.key(event));
    this.draw();
    await this.load();
    document.documentElement.dataset.ready = "true";
    this.watch();
  }

  key(event) {
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); this.search.focus(); }
    if (event.key === "Escape" && event.target === this.search) { this.search.value = this.query = ""; this.draw(); }
  }

  async load() {
    try {
      const found = await everywatt.ask("/api/runs");
      const text = JSON.stringify(found);
      this.pending = found.pending;
      if (text !== this.text) {
        this.text = text;
        this.rows = found.runs.map((row) => ({ ...row, words: this.words(row), pairs: Object.entries(row.tags || {}).map(([key, value]) => key + "=" + value) }));
        this.folder = found.home;
        this.draw();
      }
      this.failed = null;
    } catch (error) {
      this.failed = error.message;
      this.pending = 0;
      this.draw();
    }
  }

  // Soon again while the server is still reading, else now and then, and only while the page is visible.
  watch() {
    setTimeout(async () => {
      if (!document.hidden) await this.load();
      this.watch();
    }, this.pending ? 200 : 5000);
  }

  words(row) {
    const tags = Object.entries(row.tags || {}).map(([key, value]) => key + "=" + value);
    return [row.key, row.name, row.command, row.host, row.note, ...tags].filter(Boolean).join("\n").toLowerCase();
  }

  chosen() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => row.words.includes(word)) && [...this.tags].every((tag) => row.pairs.includes(tag));
    const { key } = everywatt.RunList.columns.find((column) => column.id === this.sort);
    const sign = this.down ? -1 : 1;
    const empty = (value) => value === null || value === undefined || value === "";
    // What has no value comes last, whichever way it is sorted.
    return this.rows.filter(fits).map((row, i) => [key(row), i, row]).sort(([a, i], [b, j]) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b) || i - j;
      return (a < b ? -sign : a > b ? sign : 0) || i - j;
    }).map(([, , row]) => row);
  }

  draw() {
    const rows = this.chosen(), shown = rows.slice(0, this.most), { element } = everywatt;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : null;
    this.drawHeads();
    this.drawFacets(rows);
    this.body.replaceChildren(...(shown.length ? shown.map((row) => this.row(row)) : [this.none()]));
    this.more.hidden = rows.length <= shown.length;
    this.more.textContent = "Show more of " + rows.length;
    this.count.textContent = this.failed ? this.failed : !this.text ? "Reading the runs …"
      : (rows.length === this.rows.length ? this.rows.length + (this.rows.length === 1 ? " run" : " runs") : rows.length + " of " + this.rows.length + " runs") + (this.pending ? ", " + this.pending + " left to read" : "");
    this.home.replaceChildren(...(this.folder ? ["in ", element("code", {}, this.folder)] : []));
    this.order.value = this.sort + " " + (this.down ? 1 : 0);
    this.drawBar();
    if (focused) { const again = this.root.querySelector(`[data-focus="${CSS.escape(focused)}"]`); if (again) again.focus({ preventScroll: true }); }
    this.remember();
  }

  none() {
    const text = !this.text ? "" : this.rows.length ? "No run matches." : "There are no runs yet. Record one: everywatt run -- COMMAND";
    return everywatt.element("tr.none", {}, everywatt.element("td", { colspan: everywatt.RunList.columns.length + 1 }, text));
  }

  drawHeads() {
    const { element } = everywatt;
    const heads = everywatt.RunList.columns.map((column) => {
      const sorted = column.id === this.sort;
      const turn = () => this.sortBy(column.id, sorted ? (this.down ? "0" : "1") : (column.up ? "0" : "1"));
      return element("th" + (column.number ? ".number" : ""), { scope: "col", "aria-sort": sorted ? (this.down ? "descending" : "ascending") : null },
        column.key ? element("button.sort", { type: "button", "data-focus": "sort-" + column.id, onclick: turn }, column.title, element("span.arrow", { "aria-hidden": "true" }, sorted ? (this.down ? "↓" : "↑") : "")) : column.title);
    });
    this.heads.replaceChildren(element("th.pick", { scope: "col" }, element("span.hidden", {}, "Pick")), ...heads);
  }

  sortBy(id, down) {
    this.sort = id;
    this.down = down === "1";
    this.draw();
  }

  // The tags that most of the runs have, chosen ones first.
  drawFacets(rows) {
    const { element } = everywatt, counts = new Map();
    for (const row of rows) for (const pair of row.pairs) counts.set(pair, (counts.get(pair) || 0) + 1);
    for (const tag of this.tags) if (!counts.has(tag)) counts.set(tag, 0);
    const order = [...counts].sort(([a, n], [b, m]) => this.tags.has(b) - this.tags.has(a) || m - n || (a < b ? -1 : 1));
    this.facets.replaceChildren(...order.slice(0, 14).map(([tag, n]) => element("button.tag", { type: "button", "aria-pressed": String(this.tags.has(tag)), "data-focus": "facet-" + tag, onclick: () => this.turnTag(tag) },
      tag, element("span.about", {}, String(n)))));
    this.facets.hidden = !order.length;
  }

  turnTag(tag) {
    if (!this.tags.delete(tag)) this.tags.add(tag);
    this.draw();
  }

  row(row) {
    const { element } = everywatt, name = row.name || row.key;
    const pick = element("input", { type: "checkbox", "aria-label": "Pick " + name, "data-focus": "pick-" + row.key, onchange: () => { if (pick.checked) this.picked.add(row.key); else this.picked.delete(row.key); this.drawBar(); } });
    pick.checked = this.picked.has(row.key);
    const head = element("th.name", { scope: "row" }, element("a", { href: "/run/" + encodeURIComponent(row.key) }, name), row.live ? element("span.now", {}, "recording") : null);
    if (row.trouble || row.pending) return element("tr", { "data-key": row.key }, element("td.pick", {}, pick), head, element("td.quiet", { colspan: everywatt.RunList.columns.length - 1 }, row.trouble || "…"));
    return element("tr", { "data-key": row.key }, element("td.pick", {}, pick), head,
      element("td.when", { title: row.started }, everywatt.when(row.started)),
      element("td.number", { "data-label": "Time" }, row.duration),
      element("td.number.energy", { "data-label": "Energy" }, row.joules === null ? element("span.quiet", { title: row.refused }, "no energy") : everywatt.withSpread(row.shown), element("span.about", {}, [row.scope, row.pedigree, row.joules !== null && row.coverage < 0.9995 ? "coverage " + everywatt.percent(row.coverage) : ""].filter(Boolean).join(" · "))),
      element("td.spark", {}, everywatt.sparkline(row.spark)),
      element("td.tags", {}, row.pairs.map((pair) => element("button.tag", { type: "button", "aria-pressed": String(this.tags.has(pair)), "data-focus": "tag-" + row.key + pair, onclick: () => this.turnTag(pair) }, pair))),
      element("td.command", { title: row.command }, row.command ? element("code", {}, row.command) : ""));
  }

  drawBar() {
    const { element } = everywatt, known = new Set(this.rows.map((row) => row.key)), keys = [...this.picked].filter((key) => known.has(key)), most = 16;
    const address = "/compare?" + new URLSearchParams(keys.map((key) => ["run", key]));
    const ready = keys.length > 1 && keys.length <= most;
    this.bar.hidden = !keys.length;
    this.bar.replaceChildren(element("span", {}, keys.length > most ? "At most " + most + " can be compared" : keys.length + " picked" + (keys.length === 1 ? "; select another to compare" : "")),
      ready ? element("a.button", { href: address }, "Compare") : null,
      element("button", { type: "button", onclick: () => { this.picked.clear(); this.draw(); } }, "Clear"));
  }

  // The address says what is shown, so that it can be kept and sent.
  remember() {
    const now = new URLSearchParams();
    if (this.query) now.set("q", this.query);
    for (const tag of this.tags) now.append("tag", tag);
    if (this.sort !== "started" || !this.down) { now.set("sort", this.sort); now.set("down", this.down ? "1" : "0"); }
    const text = now.toString();
    history.replaceState(null, "", text ? "/?" + text : "/");
  }
};

everywatt.RunList.columns = [
  { id: "name", title: "Run", key: (row) => (row.name || row.key).toLowerCase(), up: true, most: "Z first", least: "A first" },
  { id: "started", title: "When", key: (row) => row.started || (row.pending || row.trouble ? "" : null), most: "newest first", least: "oldest first" },
  { id: "duration", title: "Time", key: (row) => row.duration_s, number: true, most: "longest first", least: "shortest first" },
  { id: "energy", title: "Energy", key: (row) => row.joules, number: true, most: "most first", least: "least first" },
  { id: "power", title: "Power" },
  { id: "tags", title: "Tags", key: (row) => row.pairs.join(" ").toLowerCase(), up: true, most: "Z first", least: "A first" },
  { id: "command", title: "Command", key: (row) => (row.command || "").toLowerCase(), up: true, most: "Z first", least: "A first" },
];

// `15 Nov 2026, 20:13` in the reader's own zone.
everywatt.when = function (iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? iso : date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
};

everywatt.sparkline = function (values) {
  if (!values || !values.some((value) => value !== null)) return null;
  const { svg } = everywatt;
  const width = 96, height = 24, known = values.filter((value) => value !== null), most = Math.max(...known, 1e-9);
  const x = (i) => (i * width / (values.length - 1)).toFixed(1), y = (value) => (height - 2 - (height - 4) * Math.max(0, value) / most).toFixed(1);
  let path = "";
  values.forEach((value, i) => { if (value !== null) path += (path && values[i - 1] !== null ? "L" : "M") + x(i) + " " + y(value); });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Power from " + everywatt.number(Math.min(...known), "W") + " to " + everywatt.number(Math.max(...known), "W") }, svg("path", { d: path, class: "curve" }));
};
