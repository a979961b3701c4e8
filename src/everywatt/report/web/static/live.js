// The machine now, or a run that is being written: figures, charts that move, owners. Fed by server-sent events.
"use strict";

// Time goes on: the window follows it until a viewer moves it, and again when everything is asked for.
everywatt.LiveWindow = class extends everywatt.Window {
  constructor(low, high, span) {
    super(low, high);
    this.span = span;
    this.follows = true;
    this.advance(low, high);
  }

  set(a, b) {
    this.follows = false;
    super.set(a, b);
  }

  reset() {
    this.follows = true;
    this.advance(...this.whole);
  }

  advance(low, high) {
    this.whole = [Math.min(low, high - 20), high];
    if (this.follows) super.set(Math.max(high - this.span, this.whole[0]), high);
  }
};

// A line that grows at its end and is cut at its start. A value holds for the time before it.
everywatt.LiveLine = class extends everywatt.Line {
  constructor(about) {
    super({ held: true, exact: true, shown: true, in_total: false, per: 1, n: 0, channel: "", ...about }, { t: [], v: [] });
    this.most = 3600;
  }

  add(t, value) {
    if (this.t.length && t <= this.t[this.t.length - 1]) return;
    const known = value === null || value === undefined ? NaN : value;
    this.t.push(t);
    this.mean.push(known);
    if (this.t.length > this.most) { this.t.shift(); this.mean.shift(); }
    this.low = this.high = this.mean;
    this.first = this.t[0] - 1;
    this.sum = null;
  }

  get empty() { return !this.mean.some((value) => !Number.isNaN(value)); }
};

// Its times are seconds after `origin`, so that they keep their digits.
everywatt.LiveChart = class extends everywatt.Chart {
  time(t) { return everywatt.clockTime(this.about.origin + t); }
};

everywatt.clockTime = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");

// What a live view draws of a device, in which unit, and how its numbers become that.
everywatt.liveCharts = [
  { id: "power", key: "power_w", title: "Power", unit: "W", scale: 1 },
  { id: "utilisation", key: "utilisation_pct", title: "Utilisation", unit: "%", scale: 1 },
  { id: "temperature", key: "temperature_c", title: "Temperature", unit: "°C", scale: 1 },
  { id: "clocks", key: "clock_mhz", title: "Clocks", unit: "MHz", scale: 1 },
  { id: "memory", key: "memory_bytes", title: "Memory", unit: "GiB", scale: 1 / 2 ** 30 },
];

// It draws and tabulates as the report does.
everywatt.Board = class extends everywatt.Page {
  constructor(address, box, words) {
    super({ runs: [] }, box);
    Object.assign(this, { address, box, words });
    this.lines = new Map();
    this.made = new Map();
    this.places = new Set();
    this.paused = false;
    this.spans = [60, 300, 1800];
    everywatt.shell.redraws.push(() => this.redraw());
  }

  show() {
    const { element } = everywatt;
    this.figures = element("div.hero");
    this.tiles = element("div.tiles");
    this.notes = element("div");
    this.chartsBox = element("div.charts");
    this.ownersBox = element("div");
    this.modelsBox = element("div");
    this.state = element("p.state", { role: "status" }, this.words.waiting);
    this.hold = element("button", { type: "button", "aria-pressed": "false", onclick: () => this.pause(!this.paused) }, "Pause");
    this.follow = element("button", { type: "button", onclick: () => this.view && this.view.reset() }, "Now");
    const span = (seconds) => element("button", { type: "button", "data-span": seconds, "aria-pressed": String(seconds === 60), onclick: () => this.setSpan(seconds) }, seconds / 60 + " min");
    this.tools = element("div.toolbar", { role: "toolbar", "aria-label": "Live charts" }, element("div.group", {}, this.hold, this.follow), element("div.group", {}, this.spans.map(span)), this.state);
    this.box.replaceChildren(
      element("section.card.live", { "aria-labelledby": "now-title" }, element("h2", { id: "now-title" }, this.words.title), this.figures, this.tiles, this.notes),
      everywatt.section("live-charts", "Power, live", "Drag over a chart to zoom in, double-click to follow again.", this.tools, this.chartsBox),
      this.modelsBox, this.ownersBox);
    this.connect();
    document.addEventListener("visibilitychange", () => this.seen());
    addEventListener("pagehide", () => this.disconnect());
    addEventListener("pageshow", (event) => { if (event.persisted) this.connect(); });
  }

  // The server need not measure for a hidden page. Hiding it for a short time does not matter.
  seen() {
    clearTimeout(this.leaving);
    if (document.hidden) this.leaving = setTimeout(() => this.disconnect(), 30000);
    else if (!this.events && !this.over) this.connect();
  }

  connect() {
    if (this.events) return;
    const events = this.events = new EventSource(this.address);
    const on = (kind, act) => events.addEventListener(kind, (event) => act(JSON.parse(event.data)));
    on("start", (data) => this.begin(data));
    on("snapshot", (data) => this.take(data));
    on("trouble", (data) => this.end(data.error + (data.cure ? " Try: " + data.cure : "")));
    on("end", () => { this.over = true; this.end("The run has ended."); if (this.words.ended) this.words.ended(); });
    events.onopen = () => { this.state.textContent = this.snapshot ? "" : this.words.waiting; };
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) this.end("The server has stopped, or has too many viewers.");
      else this.state.textContent = "The server does not respond; retrying …";
    };
  }

  disconnect() {
    if (this.events) this.events.close();
    this.events = null;
  }

  end(text) {
    this.disconnect();
    const again = everywatt.element("button.plain", { type: "button", onclick: () => this.connect() }, "Retry");
    this.state.replaceChildren(text, ...(this.over ? [] : [" ", again]));
    document.documentElement.dataset.ready = "true";
  }

  pause(paused) {
    this.paused = paused;
    this.hold.setAttribute("aria-pressed", String(paused));
    this.hold.textContent = paused ? "Resume" : "Pause";
    if (!paused && this.snapshot) this.draw();
  }

  setSpan(seconds) {
    for (const button of this.tools.querySelectorAll("[data-span]")) button.setAttribute("aria-pressed", String(Number(button.dataset.span) === seconds));
    if (!this.view) return;
    this.view.span = seconds;
    this.view.reset();
  }

  // What was before: power at equal steps, then what others saw.
  begin({ interval_s: step, t, history, total_history: total, points }) {
    this.interval = step;
    this.origin ??= t;
    const first = (points.length ? points[0].t : t) - this.origin;
    // The last of them is the first point's own.
    const past = (name, values) => values.slice(0, -1).forEach((value, i) => this.line("power", name).add(first - (values.length - 1 - i) * step, value));
    past("total", total);
    for (const [name, values] of Object.entries(history)) past(name, values);
    for (const point of points) this.add(point);
  }

  line(chart, name) {
    const key = chart + " " + name;
    if (!this.lines.has(key)) {
      this.places.add(name);
      this.lines.set(key, new everywatt.LiveLine({ label: name, device: name, chart }));
    }
    return this.lines.get(key);
  }

  add({ t: utc, power_w: power, devices, host }) {
    const t = utc - this.origin;
    this.line("power", "total").add(t, power);
    // A machine without a power sensor has one device of the same name, with an estimate.
    const all = Object.fromEntries(devices.map((device) => [device.name, device]));
    all.host = { utilisation_pct: host.cpu_pct, memory_bytes: host.memory_bytes, ...all.host };
    for (const { id, key, scale } of everywatt.liveCharts) {
      for (const [name, values] of Object.entries(all)) {
        const value = values[key];
        if (value !== null && value !== undefined || this.lines.has(id + " " + name)) this.line(id, name).add(t, value === null || value === undefined ? null : value * scale);
      }
    }
    this.low = Math.min(this.low ?? t, ...[...this.lines.values()].map((line) => line.t[0] ?? t));
    this.high = t;
  }

  take(snapshot) {
    this.origin ??= snapshot.t;
    this.add(snapshot);
    this.snapshot = snapshot;
    this.state.textContent = "";
    if (!this.paused) this.draw();
    if (snapshot.power_w !== null || snapshot.elapsed_s > 5) document.documentElement.dataset.ready = "true";
  }

  draw() {
    this.drawFigures();
    this.drawTiles();
    this.drawModels();
    this.drawOwners();
    if (!this.view) {
      this.view = new everywatt.LiveWindow(this.low, this.high, 60);
      this.view.listeners.push(() => { this.follow.disabled = this.view.follows; });
    }
    this.addCharts();
    this.view.advance(this.low, this.high);
    if (!this.view.follows) for (const chart of this.charts) chart.refresh();
  }

  /** From when on energies count. */
  began() {
    return this.snapshot.since || everywatt.clockTime(this.snapshot.t - this.snapshot.elapsed_s);
  }

  drawFigures() {
    const { element, number } = everywatt, now = this.snapshot, energy = now.energy;
    const figure = (label, value, about) => element("div", {}, element("dt", {}, label), element("dd", {}, value, element("span.about", {}, about)));
    const [, value, unit] = now.power_shown.match(/^(.*?) ?([a-zA-Z]*)$/);
    this.figures.replaceChildren(
      element("div", {}, element("p.figure", {}, element("span.value", { "data-power": "" }, value), element("span.unit", {}, unit)),
        element("p.about", {}, now.host.name + " · mean of the last " + number(this.interval || 1, "s")),
        element("dl.chips", {}, energy.scope ? this.chip("Scope", energy.scope, "what the watts cover") : null, energy.pedigree ? this.chip("Provenance", energy.pedigree, "how they were obtained", energy.pedigree.includes("modelled")) : null)),
      element("dl.figures", {},
        figure("Energy", energy.joules === null ? "–" : everywatt.withSpread(energy.shown), energy.refused || this.words.since + " " + this.began()),
        figure("Averages", now.averages_shown, "time constants of 1, 5 and 15 s"),
        now.host.cpu_pct === null ? null : figure("CPU", everywatt.percent(now.host.cpu_pct / 100), "of all CPUs"),
        now.host.memory_bytes === null ? null : figure("Memory", everywatt.bytesOf(now.host.memory_bytes), now.host.memory_total_bytes ? "of " + everywatt.bytesOf(now.host.memory_total_bytes) : "in use")));
    this.notes.replaceChildren(...(now.notes.length ? [element("div.warnings", { role: "note" }, element("h3", {}, "Caveats"), element("ul", {}, now.notes.map((text) => element("li", {}, text))))] : []));
  }

  drawTiles() {
    const { element, number, swatch } = everywatt, { palette } = everywatt.theme();
    const devices = this.snapshot.devices;
    const tile = (device) => {
      const facts = [];
      if (device.utilisation_pct !== null) facts.push(number(Math.round(device.utilisation_pct)) + " %");
      if (device.memory_bytes !== null) facts.push(everywatt.bytesOf(device.memory_bytes) + (device.memory_total_bytes ? " / " + everywatt.bytesOf(device.memory_total_bytes) : ""));
      if (device.temperature_c !== null) facts.push(number(Math.round(device.temperature_c)) + " °C");
      if (device.clock_mhz !== null) facts.push(number(Math.round(device.clock_mhz)) + " MHz");
      if (device.power_limit_w) facts.push("limit " + number(device.power_limit_w, "W"));
      if (device.throttled) facts.push("throttled");
      return element("div.tile", { role: "listitem", title: device.label || device.name },
        element("p.what", {}, swatch(palette[this.placeOf(device.name) % palette.length]), device.name, element("span.about", {}, device.label)),
        element("p.watts", {}, device.power_shown, element("span.about", {}, device.energy.joules === null ? "" : device.energy.shown)),
        element("p.about", {}, facts.join(" · ") || (device.in_total ? "" : "not in the total")));
    };
    this.tiles.setAttribute("role", "list");
    this.tiles.setAttribute("aria-label", "Devices");
    this.tiles.hidden = !devices.length;
    this.tiles.replaceChildren(...devices.map(tile));
  }

  // As in the report: a part of a device ("cpu.0 core") has the device's colour.
  placeOf(name) {
    const device = (one) => one.split(" ")[0];
    return everywatt.devicePlaces([...this.places].map(device)).get(device(name)) ?? 0;
  }

  // A chart comes when its first value does.
  addCharts() {
    for (const about of everywatt.liveCharts) {
      const lines = [...this.lines.values()].filter((line) => line.about.chart === about.id && !line.empty);
      const known = this.made.get(about.id);
      if (!lines.length || known && known.lines.length === lines.length) continue;
      const totals = new Map(this.snapshot.devices.map((device) => [device.name, device.in_total]));
      const several = lines.filter((line) => totals.get(line.about.label)).length > 1;
      for (const line of lines) line.about.shown = about.id !== "power" || (line.about.label === "total" ? several : totals.get(line.about.label) !== false);
      if (known) known.frame.remove();
      const chart = this.chart({ ...about, origin: this.origin, lines: lines.map((line) => line.about) }, lines, this.view, (line) => this.placeOf(line.device),
        { Kind: everywatt.LiveChart, keys: ", live. Arrow keys move and zoom, 0 follows again." });
      const after = [...this.chartsBox.children].find((other) => everywatt.liveCharts.findIndex((one) => one.id === other.dataset.chart) > everywatt.liveCharts.indexOf(about));
      this.chartsBox.insertBefore(chart.frame, after || null);
      this.charts = this.charts.filter((one) => one !== known);
      this.made.set(about.id, chart);
      if (known) this.view.listeners = this.view.listeners.filter((listener) => listener !== known.listener);
      chart.listener = this.view.listeners[this.view.listeners.length - 1];
    }
    // A further device may move the others in the palette: all charts are drawn again then.
    for (const chart of this.charts) {
      if (chart.devices === this.places.size) continue;
      chart.devices = this.places.size;
      chart.draw();
      chart.legend();
    }
  }

  drawModels() {
    const { section, table } = everywatt, models = this.snapshot.models || [];
    if (!models.length) { this.modelsBox.replaceChildren(); return; }
    const rows = models.map((row) => [row.server, row.model || "–", row.refused ? "–" : row.phase, row.refused ? "none: " + row.refused : row.shown]);
    this.modelsBox.replaceChildren(section("live-models", "Language models", "Active energy by token over the last minute, with its 95 % interval: by prompt token for prefill, else by generated token.",
      table("Language models", ["Server", "Model", "Phase", "Energy"], rows, [3])));
  }

  drawOwners() {
    const { element, section, table, number } = everywatt, owners = this.snapshot.owners;
    if (!owners) { this.ownersBox.replaceChildren(); return; }
    if (document.activeElement && this.ownersBox.contains(document.activeElement)) return;
    const percent = (value) => everywatt.percent(value === null ? null : value / 100);
    const body = owners.refused ? element("p.about", {}, "No owners: " + owners.refused + ".")
      : !owners.entries.length ? element("p.about", {}, "No owners yet.")
      : table("Owners", ["Owner", "Kind", "Power", "Energy", "CPU", "GPU", "Memory"], owners.entries.map((entry) => [entry.owner.label, entry.owner.kind, entry.power_shown, entry.shown,
        percent(entry.cpu_pct), percent(entry.gpu_pct), entry.memory_bytes === null ? "–" : everywatt.bytesOf(entry.memory_bytes)]), [2, 3, 4, 5, 6]);
    const more = owners.count > owners.entries.length ? "The first " + owners.entries.length + " of " + owners.count + ". " : "";
    const until = owners.age_s >= 2 ? ", until " + Math.round(owners.age_s) + " s ago" : "";
    this.ownersBox.replaceChildren(section("live-owners", "Owners", more + "Energy is since " + this.began() + until + ".", body));
  }

  redraw() {
    if (!this.snapshot) return;
    super.redraw();
    this.drawTiles();
  }
};

everywatt.bytesOf = function (bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0, value = bytes;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place++; }
  return value.toFixed(place ? 1 : 0) + " " + units[place];
};
