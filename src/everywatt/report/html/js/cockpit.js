// The cockpit of a batch: lanes over time, every item with search and sort, one item closely, figures against size.
"use strict";

everywatt.Cockpit = class {
  // page: the page whose charts can show the time of an item
  constructor(batch, page) {
    Object.assign(this, { batch, page, words: "", sort: "id", down: false, chosen: null });
    this.most = 200; // rows that are drawn at once
    this.byId = new Map(batch.items.map((item) => [item.id, item]));
  }

  show() {
    const { element } = everywatt;
    this.table = element("div");
    this.detail = element("div.item-detail", { "aria-live": "polite" });
    this.count = element("p.about", { role: "status" });
    this.input = element("input", { type: "search", "aria-label": "Search items", placeholder: "Name, status, device, reason", oninput: () => this.search(this.input.value, false) });
    this.drawTable();
    this.page.coloured.push(() => this.drawTable()); // drawn again when that changes, as colours are
    this.drawDetail();
    return element("div.cockpit", {}, element("h3", {}, "Lanes over time"), this.page.themed(() => this.lanes()), this.page.themed(() => this.sizes()), element("h3", {}, "Items"),
      element("div.toolbar-row", {}, this.input, this.count), this.table, this.detail);
  }

  // Show the items with these words, and go there unless they are being typed.
  search(words, go = true) {
    this.words = words.toLowerCase();
    this.drawTable();
    if (!go) return;
    this.input.value = words;
    this.input.focus();
    this.input.scrollIntoView({ block: "start" });
  }

  // Colours of the style that no device has.
  colour(status) { return "var(--" + ({ done: "done", failed: "failed", interrupted: "warn", running: "accent" }[status] ?? "quiet") + ")"; }

  // One row for each lane of a device, one bar for each attempt.
  lanes() {
    const { element, svg, seconds, swatch } = everywatt;
    const bars = this.batch.items.flatMap((item) => item.attempts.filter((one) => one.window_s).map((one) => ({ item, one }))).sort((a, b) => a.one.window_s[0] - b.one.window_s[0]);
    if (!bars.length) return [element("p.about", {}, "No attempt was recorded.")];
    const names = [...new Set(bars.map(({ one }) => one.device + " · lane " + one.lane))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const low = Math.min(...bars.map(({ one }) => one.window_s[0])), high = Math.max(...bars.map(({ one }) => one.window_s[1]));
    const place = (t) => 1000 * (t - low) / Math.max(high - low, 1e-9), span = high - low;
    const rows = names.map((name) => {
      const mine = bars.filter(({ one }) => one.device + " · lane " + one.lane === name);
      const rects = mine.map(({ item, one }) => {
        const [a, b] = one.window_s;
        const words = item.id + ", attempt " + one.number + ": " + one.status + ", " + seconds(b - a, b - a) + (one.energy ? ", " + one.energy : "");
        const rect = svg("rect", { x: place(a).toFixed(2), y: 1, width: Math.max(0.8, place(b) - place(a) - 0.6).toFixed(2), height: 18, fill: this.colour(one.status), class: "attempt", role: "button", tabindex: one === bars[0].one ? 0 : -1, "aria-label": words }, svg("title", {}, words));
        rect.addEventListener("click", () => this.choose(item.id));
        return rect;
      });
      return element("div.lane-row", {}, element("span.name", {}, name),
        svg("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "group", "aria-label": name + ": " + mine.length + " attempts" }, rects),
        element("span.value", {}, mine.length + (mine.length === 1 ? " attempt" : " attempts")));
    });
    const statuses = [...new Set(bars.map(({ one }) => one.status))];
    return [element("div.heat-map.lanes", { role: "group", "aria-label": "Attempts on each lane over time", onkeydown: (event) => this.laneKey(event) }, rows,
      element("p.about", {}, seconds(low, span) + " to " + seconds(high, span) + ". ", element("span.hint", {}, "Click an attempt, or an item in the table, for details; arrow keys move, Enter opens.")),
      element("ul.key", {}, statuses.map((status) => element("li", {}, swatch(this.colour(status)), status))))];
  }

  // One stop of the Tab key for all lanes; arrow keys go on from there.
  laneKey(event) {
    const here = event.target, rows = [...event.currentTarget.querySelectorAll("svg")].map((row) => [...row.querySelectorAll(".attempt")]);
    const next = everywatt.neighbour(rows, here, event.key, (one) => Number(one.getAttribute("x")));
    if (event.key === "Enter" || event.key === " ") here.dispatchEvent(new MouseEvent("click"));
    else if (!next) return;
    else { here.setAttribute("tabindex", -1); next.setAttribute("tabindex", 0); next.focus(); }
    event.preventDefault();
  }

  found() {
    const words = this.words.split(/\s+/).filter(Boolean);
    const text = (item) => [item.id, item.input, item.status, item.device, item.why, item.cause].join(" ").toLowerCase();
    const value = { id: (item) => item.id, status: (item) => item.status, attempts: (item) => item.attempts.length, device: (item) => item.device, size: (item) => item.size,
      seconds: (item) => item.seconds, joules: (item) => item.joules, memory: (item) => item.memory_bytes, why: (item) => item.why }[this.sort];
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null || x === undefined || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
      return (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true })) * (this.down ? -1 : 1);
    };
    return this.batch.items.filter((item) => words.every((word) => text(item).includes(word))).sort(order);
  }

  drawTable() {
    const { element, number } = everywatt, items = this.found(), sized = this.batch.items.some((item) => item.size !== null);
    const columns = [["id", "Item"], ["status", "Status"], ["attempts", "Attempts", true], ["device", "Device"], ...(sized ? [["size", "Size", true]] : []), ["seconds", "Time", true], ["joules", "Energy", true], ["memory", "Memory", true], ["why", "Reason"]];
    const cells = (item) => ({ id: item.id, status: item.status, attempts: String(item.attempts.length), device: item.device || "–", size: item.size === null ? "–" : number(item.size), seconds: item.time || "–",
      joules: item.energy || "–", memory: item.memory_bytes === null ? "–" : number(item.memory_bytes / 2 ** 20, "MiB"), why: item.why });
    const mark = (key) => key === this.sort ? (this.down ? " ▾" : " ▴") : "";
    // On paper without buttons: a browser does not repeat a head that has some on the next sheet.
    const head = ([key, label, right]) => element("th" + (right ? ".number" : ""), { scope: "col", "aria-sort": key !== this.sort ? null : this.down ? "descending" : "ascending" },
      matchMedia("print").matches ? label + mark(key) : element("button.sort", { type: "button", onclick: () => { this.down = key === this.sort ? !this.down : false; this.sort = key; this.drawTable(); } }, label, mark(key)));
    const row = (item) => {
      const words = cells(item);
      return element("tr" + (item.id === this.chosen ? ".chosen" : ""), {}, columns.map(([key, , right], i) => i ? element("td" + (right ? ".number" : ""), {}, words[key])
        : element("th", { scope: "row" }, element("button.link", { type: "button", onclick: () => this.choose(item.id) }, words.id))));
    };
    const focused = this.table.contains(document.activeElement) && document.activeElement.textContent;
    this.table.replaceChildren(element("div.scroll.items", { tabindex: "0", role: "region", "aria-label": "Items" }, element("table", {}, element("caption.hidden", {}, "Items"), element("thead", {}, element("tr", {}, columns.map(head))), element("tbody", {}, items.slice(0, this.most).map(row)))));
    if (focused) [...this.table.querySelectorAll("button")].find((one) => one.textContent.replace(/ [▾▴]$/, "") === focused.replace(/ [▾▴]$/, ""))?.focus();
    const more = this.batch.more_items ? "; " + this.batch.more_items + " further items are in the JSON of everywatt batch summary" : "";
    this.count.textContent = items.length.toLocaleString("en") + " of " + this.batch.items.length.toLocaleString("en") + " items" + (items.length > this.most ? ", the first " + this.most + " shown" : "") + more;
  }

  choose(id) {
    this.chosen = id;
    this.drawTable();
    this.drawDetail();
    this.detail.scrollIntoView({ block: "nearest" });
  }

  // One item: its figures, its attempts, what they said, and a way to its time in the charts.
  drawDetail() {
    const { element, number, table } = everywatt, item = this.byId.get(this.chosen);
    if (!item) { this.detail.replaceChildren(); return; }
    const power = item.power ? number(item.power.mean, "W") + " mean, " + number(item.power.min) + " … " + number(item.power.max, "W") : null;
    const timed = item.attempts.filter((one) => one.window_s), last = timed[timed.length - 1];
    const rows = item.attempts.map((one) => [String(one.number), one.status, one.device + " · lane " + one.lane, one.window_s ? everywatt.seconds(one.window_s[0], 1) : "–", one.time || "–", one.energy || "–", one.exit_code === null ? "–" : String(one.exit_code)]);
    const said = item.attempts.filter((one) => one.stderr);
    const toCharts = () => {
      const [a, b] = last.window_s, room = Math.max(0.05 * (b - a), 0.01);
      this.page.view.set(a - room, b + room);
      document.getElementById("charts").scrollIntoView();
    };
    this.detail.replaceChildren(element("div.card.inner", {},
      element("h4", {}, item.id, " ", element("span.about", {}, item.status + (item.why ? ": " + item.why : ""))),
      everywatt.pairs([["Input", item.input === item.id ? null : item.input], ["Size", item.size === null ? null : number(item.size)], ["Energy, all attempts", item.energy], ["Power", power],
        ["Peak memory of the GPU", item.memory_bytes === null ? null : number(item.memory_bytes / 2 ** 20, "MiB")]].filter(([, text]) => text)),
      rows.length ? table("Attempts of " + item.id, ["Attempt", "Status", "Where", "Start", "Time", "Energy", "Exit code"], rows, [0, 3, 4, 5, 6]) : element("p.about", {}, "It was not started."),
      ...said.map((one) => [element("p.about", {}, "stderr of attempt " + one.number), element("pre", { tabindex: "0" }, one.stderr)]).flat(),
      last ? element("button.plain", { type: "button", onclick: toCharts }, "Show its power in the charts") : null));
  }

  // Time, joules and memory against size; sizes that failed are crosses. Logarithmic where sizes span decades.
  sizes() {
    const { element } = everywatt, sized = this.batch.items.filter((item) => item.size > 0);
    if (new Set(sized.map((item) => item.size)).size < 3) return [];
    const plots = [["Time", "s", (item) => item.seconds], ["Energy", "J", (item) => item.joules], ["Memory", "MiB", (item) => item.memory_bytes === null ? null : item.memory_bytes / 2 ** 20]];
    const dot = (item, y) => ({ x: item.size, y, name: item.id + " (" + item.status + ")", colour: this.colour(item.status), cross: item.status !== "done", choose: () => this.choose(item.id) });
    const drawn = plots.map(([title, unit, value]) => [title, unit, sized.map((item) => dot(item, value(item))).filter((one) => one.y !== null && one.y !== undefined)]).filter(([, , dots]) => dots.length > 2)
      .map(([title, unit, dots]) => everywatt.scatter(title, dots, { xLabel: "size", yLabel: unit, size: 3, logs: true, wide: 360, tall: 220, table: false }));
    return drawn.length ? [element("h3", {}, "Against size ", element("span.about", {}, "one dot per item; a cross did not finish")), element("div.small-plots", {}, drawn)] : [];
  }
};
